#include "kt/memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace kt {
namespace {

constexpr size_t kMapped = size_t{1} << 20;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMapping = size_t{256} << 20;

size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// The system call itself: libnuma need not be there. Preferred and not strict, so that a node without room
// costs speed and not the process.
bool prefer_node(void* memory, size_t bytes, int node) {
    constexpr int kPreferred = 1;  // MPOL_PREFERRED
    constexpr size_t kBits = CHAR_BIT * sizeof(unsigned long);
    const size_t bit = static_cast<size_t>(node);
    std::vector<unsigned long> mask(bit / kBits + 1);
    mask[bit / kBits] = 1UL << bit % kBits;
    // The kernel leaves out the last of the bits that it is told of.
    return syscall(SYS_mbind, memory, bytes, kPreferred, mask.data(), mask.size() * kBits + 1, 0) == 0;
}

}  // namespace

Buffer::Buffer(size_t bytes) : bytes_(round_up(bytes, 64)) {
    if (bytes_ == 0) return;
    if (bytes_ < kMapped) {
        data_ = static_cast<uint8_t*>(std::aligned_alloc(64, bytes_));
        if (!data_) throw std::bad_alloc();
        return;
    }
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, bytes_, MADV_HUGEPAGE);  // advice: small pages work too
    data_ = static_cast<uint8_t*>(p);
}

Buffer::~Buffer() {
    if (bytes_ < kMapped) {
        std::free(data_);
    } else {
        munmap(data_, bytes_);
    }
}

Arena::Piece::~Piece() {
    if (!data_) return;
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = round_up(reinterpret_cast<uintptr_t>(data_), page);
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data_) + bytes_) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

std::shared_ptr<Buffer> Arena::map(size_t bytes) {
    std::shared_ptr<Buffer> mapping = std::make_shared<Buffer>(bytes);
    if (node_ >= 0 && refusal_.empty() && !prefer_node(mapping->data(), bytes, node_)) {
        refusal_ = "memory is not bound to NUMA node " + std::to_string(node_) + ": " + std::strerror(errno);
    }
    return mapping;
}

Arena::Piece Arena::take(size_t bytes) {
    bytes = round_up(bytes, 64);
    if (bytes > left_) {
        // Virtual size only: pages that no piece touches are never backed.
        const size_t size = bytes > kMapping / 4 ? round_up(bytes, kHugePage) : kMapping;
        std::shared_ptr<Buffer> mapping = map(size + kHugePage);
        uint8_t* const start = mapping->data();
        uint8_t* const aligned =
            start + (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
        if (size != kMapping) return {std::move(mapping), aligned, bytes};
        mapping_ = std::move(mapping);
        next_ = aligned;
        left_ = size;
    }
    Piece piece(mapping_, next_, bytes);
    next_ += bytes;
    left_ -= bytes;
    return piece;
}

}  // namespace kt
