// Aligned memory that goes back to the system when its owner dies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
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

// Memory for packed weights, carved from large mappings, so that huge pages cover matrices of a few MiB as
// well (with a mapping each, half of an expert lay in small pages).
class Arena {
  public:
    // 64-byte aligned, not initialised. Its whole pages go back when it dies, the mapping with its last
    // piece.
    class Piece {
      public:
        Piece() = default;
        Piece(std::shared_ptr<Buffer> mapping, uint8_t* data, size_t bytes)
            : mapping_(std::move(mapping)), data_(data), bytes_(bytes) {}
        ~Piece();
        Piece(Piece&& other) noexcept { *this = std::move(other); }
        Piece& operator=(Piece&& other) noexcept {
            std::swap(mapping_, other.mapping_);
            std::swap(data_, other.data_);
            std::swap(bytes_, other.bytes_);
            return *this;
        }

        uint8_t* data() const { return data_; }
        size_t bytes() const { return bytes_; }

      private:
        std::shared_ptr<Buffer> mapping_;
        uint8_t* data_ = nullptr;
        size_t bytes_ = 0;
    };

    // Of a NUMA node, -1: of the node whose thread first writes to a page. A node that is full is helped out
    // by the others. Where the system refuses to bind memory, first writes decide as well.
    explicit Arena(int node = -1) : node_(node) {}

    // Throws std::bad_alloc. One caller at a time.
    Piece take(size_t bytes);

    // Why memory is not bound to the node; empty: it is, or none was asked for.
    const std::string& refusal() const { return refusal_; }

  private:
    std::shared_ptr<Buffer> map(size_t bytes);

    int node_;
    std::string refusal_;
    std::shared_ptr<Buffer> mapping_;
    uint8_t* next_ = nullptr;
    size_t left_ = 0;
};

}  // namespace kt
