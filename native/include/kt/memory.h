// Aligned memory that goes back to the system when its owner dies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kt {

// 64-byte aligned, not initialised. From 1 MiB on it is its own mapping, with huge pages advised.
// Throws std::bad_alloc.
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t bytes);
    ~Buffer();
    Buffer(Buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }

    uint8_t* data() const { return data_; }
    size_t bytes() const { return bytes_; }

  private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace kt
