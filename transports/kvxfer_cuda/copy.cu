// Moves n ranges: dst[i], src[i] and length[i] in bytes. One warp takes a range at a time.
//
// What limits a copy between two GPUs is how many bytes are in flight, not how many threads
// run: each lane keeps eight loads of 16 bytes open before it stores. Addresses may be of
// this GPU, of a peer's that is mapped, or of pinned host memory.

typedef unsigned long long u64;

__device__ static void copy_words(char *dst, const char *src, u64 length, unsigned lane) {
    const int OPEN = 8;
    const u64 step = 32 * sizeof(uint4);
    u64 at = lane * sizeof(uint4);
    for (; at + (OPEN - 1) * step < length; at += OPEN * step) {
        uint4 word[OPEN];
#pragma unroll
        for (int k = 0; k < OPEN; k++) word[k] = __ldcs((const uint4 *)(src + at + k * step));
#pragma unroll
        for (int k = 0; k < OPEN; k++) __stcs((uint4 *)(dst + at + k * step), word[k]);
    }
    for (; at < length; at += step) *(uint4 *)(dst + at) = __ldcs((const uint4 *)(src + at));
}

extern "C" __global__ void kvxfer_copy(const u64 *src, const u64 *dst, const u64 *length, u64 n) {
    const unsigned lane = threadIdx.x & 31;
    const u64 warps = (u64)gridDim.x * (blockDim.x >> 5);
    // Neighbouring ranges go to different thread blocks, so that few ranges use all of them.
    for (u64 i = (u64)(threadIdx.x >> 5) * gridDim.x + blockIdx.x; i < n; i += warps) {
        char *to = (char *)dst[i];
        const char *from = (const char *)src[i];
        const u64 bytes = length[i];
        // Bytes before the target's next 16-byte border, and whether the source fits it.
        u64 head = (16 - ((u64)to & 15)) & 15;
        if (head > bytes) head = bytes;
        u64 body = (((u64)to ^ (u64)from) & 15) == 0 ? (bytes - head) & ~15ull : 0;
        for (u64 at = lane; at < head; at += 32) to[at] = from[at];
        copy_words(to + head, from + head, body, lane);
        for (u64 at = head + body + lane; at < bytes; at += 32) to[at] = from[at];
    }
}
