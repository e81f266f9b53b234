/* The functions of libucp that the shim calls, found at run time.
 *
 * Owns the table and the loading. Nothing is linked: one binary works with the wheel's UCX
 * and with the system's. The API version asked for is the oldest with all that is used here,
 * so that a library which is older than the headers of the build does not warn. */

#define KVU_API_MAJOR 1
#define KVU_API_MINOR 12

#define KVU_FUNCTIONS(X) \
    X(ucp_get_version_string) \
    X(ucp_config_read) X(ucp_config_modify) X(ucp_config_release) \
    X(ucp_init_version) X(ucp_cleanup) X(ucp_context_query) \
    X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_get_address) \
    X(ucp_worker_release_address) X(ucp_worker_get_efd) X(ucp_worker_arm) \
    X(ucp_worker_progress) X(ucp_worker_set_am_recv_handler) \
    X(ucp_ep_create) X(ucp_ep_query) X(ucp_ep_close_nbx) X(ucp_ep_flush_nbx) \
    X(ucp_mem_map) X(ucp_mem_unmap) X(ucp_mem_query) \
    X(ucp_rkey_pack) X(ucp_rkey_buffer_release) X(ucp_ep_rkey_unpack) X(ucp_rkey_destroy) \
    X(ucp_put_nbx) X(ucp_get_nbx) X(ucp_am_send_nbx) \
    X(ucp_request_check_status) X(ucp_request_free) \
    X(ucs_status_string)

static struct {
    void *handle;
#define X(name) __typeof__(&name) name;
    KVU_FUNCTIONS(X)
#undef X
} ucx;

static void text_to(char *err, size_t size, const char *form, const char *detail)
{
    if (size > 0)
        snprintf(err, size, form, detail);
}

/* Settings of UCX's lowest layer are read once, while it is loaded. They are put into the
 * environment for that moment only: child processes are not to inherit them. */
static const char *const load_settings[][2] = {
    {"UCX_LOG_FILE", "stderr"},        /* standard output belongs to the program */
    {"UCX_WARN_UNUSED_ENV_VARS", "n"}, /* the environment may be meant for another UCX */
    {"UCX_HANDLE_ERRORS", "none"},     /* signals belong to the program */
};
#define LOAD_SETTINGS (sizeof load_settings / sizeof *load_settings)

int kvu_load(const char *path, char *err, size_t err_size)
{
    char ours[LOAD_SETTINGS];
    if (ucx.handle != NULL)
        return 0;
    for (size_t i = 0; i < LOAD_SETTINGS; i++)
        if ((ours[i] = getenv(load_settings[i][0]) == NULL))
            setenv(load_settings[i][0], load_settings[i][1], 1);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < LOAD_SETTINGS; i++)
        if (ours[i])
            unsetenv(load_settings[i][0]);
    if (handle == NULL) {
        text_to(err, err_size, "%s", dlerror());
        return -1;
    }
#define X(name) \
    *(void **)&ucx.name = dlsym(handle, #name); \
    if (ucx.name == NULL) { \
        text_to(err, err_size, "the library has no %s: too old", #name); \
        return -1; \
    }
    KVU_FUNCTIONS(X)
#undef X
    ucx.handle = handle;
    return 0;
}

const char *kvu_version(void)
{
    return ucx.handle == NULL ? "" : ucx.ucp_get_version_string();
}
