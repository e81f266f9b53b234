/* The library called with the same columns and none of the shim's rules.
 *
 * For the benchmark, as the thing to compare with. No checks, no window, no engine. */

static unsigned raw_pending;

static void on_raw(void *request, ucs_status_t status, void *user)
{
    (void)status;
    (void)user;
    raw_pending--;
    request_free(request);
}

static void raw_note(kvu_peer *p, const char *note, size_t note_size)
{
    static struct { uint32_t magic, type; unsigned char cookie[KVU_COOKIE]; uint64_t arg; } header;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = on_raw,
        .flags = UCP_AM_SEND_FLAG_EAGER,
    };
    header.magic = AM_MAGIC;
    header.type = MSG_NOTE;
    memcpy(header.cookie, p->theirs, KVU_COOKIE);
    void *request = ucx.ucp_am_send_nbx(p->ep, AM_ID, &header, sizeof header, note, note_size,
                                        &param);
    if (UCS_PTR_IS_PTR(request))
        raw_pending++;
}

int64_t kvu_raw_transfer(kvu_session *s, kvu_peer *p, int write, size_t count,
                         const uint64_t *local, const uint64_t *remote, const uint64_t *length,
                         const char *note, size_t note_size)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.send = on_raw,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    uint64_t start = now_ns();
    atomic_store(&s->owner_ns, start); /* keeps the engine thread out */
    lock_engine(s);
    for (size_t i = 0; i < count; i++) {
        void *request = write
            ? ucx.ucp_put_nbx(p->ep, (void *)local[i], length[i], remote[i], p->keys[0], &param)
            : ucx.ucp_get_nbx(p->ep, (void *)local[i], length[i], remote[i], p->keys[0], &param);
        if (UCS_PTR_IS_PTR(request))
            raw_pending++;
    }
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
    int64_t posted = (int64_t)(now_ns() - start);
    if (count > 0) {
        void *request = ucx.ucp_ep_flush_nbx(p->ep, &param);
        if (UCS_PTR_IS_PTR(request))
            raw_pending++;
        while (raw_pending > 0)
            ucx.ucp_worker_progress(p->worker);
    }
    if (note_size > 0)
        raw_note(p, note, note_size);
    while (raw_pending > 0)
        ucx.ucp_worker_progress(p->worker);
    unlock_engine(s);
    return posted;
}

/* Progress until one more notification is there; takes it. -1 where none comes in time. A
 * timeout of 0 is one call of progress. */
int64_t kvu_raw_wait(kvu_session *s, kvu_peer *p, uint64_t timeout_ns)
{
    uint64_t start = now_ns();
    atomic_store(&s->owner_ns, start); /* keeps the engine thread out */
    lock_engine(s);
    for (unsigned i = 1; s->notes == NULL; i++) {
        ucx.ucp_worker_progress(p->worker);
        if (timeout_ns == 0 || ((i & 1023) == 0 && now_ns() - start > timeout_ns))
            break;
    }
    unlock_engine(s);
    if (s->notes == NULL)
        return -1;
    kvu_note *note = take_first(s);
    if (note == NULL)
        return -1;
    int64_t length = (int64_t)note->length;
    free(note);
    return length;
}
