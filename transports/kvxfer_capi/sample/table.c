/* The table of the sample, and the one function that the library exports. */
#include "cma.h"

static const kvxfer_transport table = {
    .struct_size = sizeof table,
    .major = KVXFER_TRANSPORT_MAJOR,
    .minor = KVXFER_TRANSPORT_MINOR,
    .name = "cma",
    .open = cma_open,
    .close = cma_close,
    .caps = cma_caps,
    .register_region = cma_register_region,
    .allocate_region = cma_allocate_region,
    .deregister_region = cma_deregister_region,
    .revoke_region = NULL, /* a peer that is inside a system call cannot be called back */
    .peer_create = cma_peer_create,
    .peer_connect = cma_peer_connect,
    .peer_destroy = cma_peer_destroy,
    .fence_peer = cma_fence_peer,
    .post_write = cma_post_write,
    .post_read = cma_post_read,
    .post_strided = cma_post_strided,
    .cancel = cma_cancel,
    .poll = cma_poll,
    .send_notification = cma_send_notification,
    .poll_notifications = cma_poll_notifications,
    .wakeup_fd = cma_wakeup_fd,
    .last_error = cma_last_error,
};

const kvxfer_transport *kvxfer_transport_table(uint32_t major)
{
    return major == KVXFER_TRANSPORT_MAJOR ? &table : NULL;
}
