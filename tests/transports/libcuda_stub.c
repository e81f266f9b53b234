/* Stands in for the NVIDIA driver's library on a host without one.
 * NIXL's LIBFABRIC plug-in names these three functions and loads only where they
 * exist; each says 'not initialised', which the plug-in takes for 'no such device'. */

enum { NOT_INITIALIZED = 3 };

int cuCtxSetCurrent(void *context) {
    (void)context;
    return NOT_INITIALIZED;
}

int cuDeviceGetPCIBusId(char *id, int length, int device) {
    (void)id, (void)length, (void)device;
    return NOT_INITIALIZED;
}

int cuPointerGetAttributes(unsigned count, void *names, void **values, unsigned long long pointer) {
    (void)count, (void)names, (void)values, (void)pointer;
    return NOT_INITIALIZED;
}
