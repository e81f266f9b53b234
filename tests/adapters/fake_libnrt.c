/* A Neuron runtime library of host memory, for tests without a device.
 *
 * Functions have the names and arguments of AWS's public header nrt.h; none of its code. Three
 * habits of the real library are kept: nothing works before nrt_init, a device tensor has an
 * address only where NEURON_RT_MAP_HBM was 1 when the process allocated its first one, and a
 * dma-buf is not to be had here. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, FAILURE = 1, INVALID = 2, RESOURCE = 4, UNINITIALIZED = 13, CLOSED = 14 };
enum { ON_DEVICE = 0, ON_HOST = 1 };

typedef struct tensor { int placement; size_t size; unsigned char *bytes; } tensor;

static int state = UNINITIALIZED, counted, mapped;

int nrt_init(int framework, const char *version, const char *layer) {
    (void)framework, (void)version, (void)layer;
    state = SUCCESS;
    return SUCCESS;
}

void nrt_close(void) {
    state = CLOSED;
    counted = 0;
}

int nrt_tensor_allocate(int placement, int core, size_t size, const char *name, tensor **made) {
    (void)name;
    if (state != SUCCESS)
        return state;
    if ((placement == ON_HOST) != (core == -1))
        return INVALID;
    if (placement == ON_DEVICE && !counted) {
        const char *set = getenv("NEURON_RT_MAP_HBM");
        mapped = set && !strcmp(set, "1");
        counted = 1;
    }
    tensor *t = malloc(sizeof *t);
    unsigned char *bytes = calloc(1, size);
    if (!t || !bytes) {
        free(t), free(bytes);
        return RESOURCE;
    }
    *t = (tensor){placement, size, bytes};
    *made = t;
    return SUCCESS;
}

void nrt_tensor_free(tensor **t) {
    free((*t)->bytes);
    free(*t);
    *t = NULL;
}

void *nrt_tensor_get_va(const tensor *t) {
    return t->placement == ON_HOST || mapped ? t->bytes : NULL;
}

int nrt_tensor_read(const tensor *t, void *buffer, size_t offset, size_t size) {
    if (offset > t->size || size > t->size - offset)
        return INVALID;
    memcpy(buffer, t->bytes + offset, size);
    return SUCCESS;
}

int nrt_tensor_write(tensor *t, const void *buffer, size_t offset, size_t size) {
    if (offset > t->size || size > t->size - offset)
        return INVALID;
    memcpy(t->bytes + offset, buffer, size);
    return SUCCESS;
}

int nrt_get_attached_efa_bdf(const void *address, char *text, size_t *size) {
    static const char card[] = "0000:00:1d.0";
    if (state != SUCCESS || !address)
        return FAILURE;
    if (*size < sizeof card)
        return RESOURCE;
    memcpy(text, card, sizeof card);
    *size = sizeof card - 1;
    return SUCCESS;
}

int nrt_get_dmabuf_fd(uint64_t address, uint64_t size, int *fd) {
    (void)address, (void)size, (void)fd;
    return FAILURE;
}
