#include "kt/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace kt {
namespace {

constexpr size_t kMapped = size_t{1} << 20;

}  // namespace

Buffer::Buffer(size_t bytes) : bytes_((bytes + 63) / 64 * 64) {
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

}  // namespace kt
