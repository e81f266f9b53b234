/* Regions of the sample: registered memory, and the table of live ones that peers read. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "cma.h"

const region *find_region(const session *s, uint64_t base, uint64_t length)
{
    for (size_t i = 0; i < REGIONS_MAX; i++) {
        const region *r = &s->regions[i];
        /* Subtractions only: no sum of a caller's numbers may wrap. */
        if (r->handle != 0 && base >= r->base && base - r->base <= r->length &&
            length <= r->length - (base - r->base))
            return r;
    }
    return NULL;
}

bool has_regions(const session *s)
{
    for (size_t i = 0; i < REGIONS_MAX; i++)
        if (s->regions[i].handle != 0)
            return true;
    return false;
}

static int32_t add_region(session *s, uint64_t base, uint64_t length, void *owned, uint64_t *out)
{
    for (size_t slot = 0; slot < REGIONS_MAX; slot++) {
        region *r = &s->regions[slot];
        if (r->handle != 0)
            continue;
        r->handle = new_handle(s, REGIONS_MAX, slot);
        r->base = base;
        r->length = length;
        r->owned = owned;
        s->table->region[slot] = r->handle;
        *out = r->handle;
        return KVXFER_OK;
    }
    return fail(s, KVXFER_NO_RESOURCE, "%d regions are registered", REGIONS_MAX);
}

int32_t cma_register_region(uint64_t handle, const kvxfer_memory *memory, uint64_t *out)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    if (memory->kind != KVXFER_MEMORY_DRAM || memory->device != 0)
        return fail(s, KVXFER_OP_INVALID, "kind = %d, device = %d: host memory only",
                    memory->kind, memory->device);
    if (memory->base == 0 || memory->length == 0 || memory->length > UINT64_MAX - memory->base)
        return fail(s, KVXFER_OP_INVALID, "%llu bytes at %llu: not a piece of memory",
                    (unsigned long long)memory->length, (unsigned long long)memory->base);
    return add_region(s, memory->base, memory->length, NULL, out);
}

int32_t cma_allocate_region(uint64_t handle, uint64_t length, int32_t kind, int32_t device,
                            uint64_t *out, uint64_t *base)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    if (kind != KVXFER_MEMORY_DRAM || device != 0 || length == 0)
        return fail(s, KVXFER_OP_INVALID, "length = %llu, kind = %d, device = %d",
                    (unsigned long long)length, kind, device);
    void *pages = length > SIZE_MAX / 2 ? MAP_FAILED
                                        : mmap(NULL, (size_t)length, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return fail(s, KVXFER_NO_RESOURCE, "no %llu bytes", (unsigned long long)length);
    int32_t status = add_region(s, (uint64_t)(uintptr_t)pages, length, pages, out);
    if (status != KVXFER_OK)
        munmap(pages, (size_t)length);
    else
        *base = (uint64_t)(uintptr_t)pages;
    return status;
}

static void drop(session *s, region *r)
{
    /* First the table: a peer that reads it from here on writes no more. */
    __atomic_store_n(&s->table->region[r - s->regions], 0, __ATOMIC_SEQ_CST);
    if (r->owned != NULL)
        munmap(r->owned, (size_t)r->length);
    memset(r, 0, sizeof *r);
}

void drop_regions(session *s)
{
    for (size_t i = 0; i < REGIONS_MAX; i++)
        if (s->regions[i].handle != 0)
            drop(s, &s->regions[i]);
}

int32_t cma_deregister_region(uint64_t handle, uint64_t region_handle)
{
    session *s = find_session(handle);
    if (s == NULL)
        return KVXFER_CLOSED;
    region *r = &s->regions[region_handle % REGIONS_MAX];
    if (region_handle == 0 || r->handle != region_handle) {
        bool given = region_handle != 0 && region_handle / REGIONS_MAX <= s->next;
        return fail(s, given ? KVXFER_REGION_STALE : KVXFER_REGION_UNKNOWN,
                    "region = %llu: not registered", (unsigned long long)region_handle);
    }
    drop(s, r);
    return KVXFER_OK;
}
