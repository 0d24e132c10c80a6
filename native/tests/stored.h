// Random weights in their stored form, in memory that ends at a guard page.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kt/matrix.h"

namespace kt {

// Memory whose last byte is followed by a page that nobody may touch.
class Guarded {
  public:
    explicit Guarded(size_t bytes) : bytes_(bytes) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        mapped_ = divide_up(bytes, page) * page + page;
        base_ = static_cast<uint8_t*>(
            mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (base_ == MAP_FAILED) throw std::bad_alloc();
        mprotect(base_ + mapped_ - page, page, PROT_NONE);
        data_ = base_ + mapped_ - page - bytes;
    }
    ~Guarded() { munmap(base_, mapped_); }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    template <class T>
    T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    size_t bytes() const { return bytes_; }

  private:
    size_t bytes_, mapped_;
    uint8_t *base_, *data_;
};

inline std::mt19937 generator(1);

inline float random_value() {
    return std::uniform_real_distribution<float>(-1.0f, 1.0f)(generator);
}

// Where a block's float16 scales lie, for formats that have them elsewhere than at 0.
inline const std::map<std::string, std::vector<size_t>> kHalves = {
    {"Q4_1", {0, 2}}, {"Q5_1", {0, 2}}, {"Q4_K", {0, 2}}, {"Q5_K", {0, 2}}, {"Q2_K", {80, 82}},
    {"Q3_K", {108}},  {"Q6_K", {208}},  {"MXFP4", {}},    {"IQ1_M", {}},
};

inline void fill_bytes(const Guarded& memory) {
    for (size_t i = 0; i < memory.bytes(); ++i) memory.as<uint8_t>()[i] = static_cast<uint8_t>(generator());
}

// Random quants and moderate scales.
inline void fill_blocks(const FormatInfo& info, const Guarded& memory) {
    uint8_t* p = memory.as<uint8_t>();
    fill_bytes(memory);
    const uint16_t kScale = 0x2c00;  // float16 1/16
    const std::string name = info.name;
    for (size_t at = 0; at + info.block_bytes <= memory.bytes(); at += info.block_bytes) {
        if (name == "F32") {
            const float value = random_value();
            std::memcpy(p + at, &value, 4);
        } else if (name == "F16" || name == "BF16") {
            p[at + 1] = static_cast<uint8_t>((p[at + 1] & 0x83) | 0x38);  // exponents near 1
        } else {
            const auto found = kHalves.find(name);
            for (const size_t i : found == kHalves.end() ? std::vector<size_t>{0} : found->second) {
                std::memcpy(p + at + i, &kScale, 2);
            }
            if (name == "MXFP4") p[at] = 124;
            if (name == "IQ1_M") p[at + 55] = static_cast<uint8_t>((p[at + 55] & 0x0f) | 0x20);
        }
    }
}

// Numbers between about 1/32 and 1.
inline void fill_scales(Scale kind, const Guarded& memory) {
    fill_bytes(memory);
    const size_t size = kind == Scale::kF32 ? 4 : kind == Scale::kE8m0 || kind == Scale::kE4m3 ? 1 : 2;
    for (size_t at = 0; at < memory.bytes(); at += size) {
        uint8_t* const top = memory.as<uint8_t>() + at + size - 1;
        const uint8_t low = *top & 3;
        const uint8_t tops[kScales] = {0,
                                       0x3d,
                                       static_cast<uint8_t>(0x2c + low),
                                       0x3d,
                                       static_cast<uint8_t>(122 + low),
                                       static_cast<uint8_t>(0x20 + 4 * low)};
        *top = tops[static_cast<size_t>(kind)];
    }
}

// Kinds of scales, sizes of groups and zero points take turns.
class Stored {
  public:
    Stored(const Kernels& kernels, size_t format, size_t rows, size_t cols)
        : info_(*kernels.formats[format].info),
          rows_(info_.layout == Layout::kAwq ? divide_up(rows, 8) * 8 : rows),
          group_(info_.group == kWholeRow ? cols
                 : info_.group            ? info_.group
                 : cols % 64 == 0         ? 64
                                          : 32),
          scale_(kind(cols)),
          has_zeros_(info_.zeros == Zeros::kAlways || (info_.zeros == Zeros::kOptional && rows_ % 8 == 0)),
          data_(rows_ * cols / info_.block * info_.block_bytes),
          scales_(scale_bytes(cols)),
          zeros_(zero_bytes(cols)) {
        const size_t groups = divide_up(cols, group_), scale_rows = divide_up(rows_, info_.scale_rows);
        const bool turned = info_.layout != Layout::kRows;
        if (info_.scale_kinds) {
            fill_bytes(data_);
            fill_scales(scale_, scales_);
            fill_bytes(zeros_);
            for (size_t i = 0; i < data_.bytes(); ++i) {  // no NaN, should these be E4M3
                if (data_.as<uint8_t>()[i] % 128 == 127) data_.as<uint8_t>()[i] = 0x3e;
            }
        } else {
            fill_blocks(info_, data_);
        }
        const size_t data_rows = info_.layout == Layout::kGptq  ? cols / 8
                                 : info_.layout == Layout::kAwq ? cols
                                                                : rows_;
        matrix = {.format = format,
                  .rows = rows_,
                  .cols = cols,
                  .data = data_.as<uint8_t>(),
                  .stride = data_.bytes() / data_rows,
                  .scales = info_.scale_kinds ? scales_.as<uint8_t>() : nullptr,
                  .scale_stride = scales_.bytes() / (turned ? groups : scale_rows),
                  .scale = scale_,
                  .zeros = has_zeros_ ? zeros_.as<uint8_t>() : nullptr,
                  .zero_stride = turned ? rows_ / 2 : divide_up(groups, 2),
                  .group = group_,
                  .multiplier = info_.multiplier ? 0.5f : 1.0f};
    }

    StoredMatrix matrix;

  private:
    Scale kind(size_t cols) const {
        std::vector<Scale> kinds{};
        for (size_t i = 1; i < kScales; ++i) {
            if (info_.scale_kinds >> i & 1) kinds.push_back(static_cast<Scale>(i));
        }
        return kinds.empty() ? Scale::kNone : kinds[cols / 32 % kinds.size()];
    }
    size_t scale_bytes(size_t cols) const {
        const size_t size = scale_ == Scale::kNone                            ? 0
                            : scale_ == Scale::kF32                           ? 4
                            : scale_ == Scale::kF16 || scale_ == Scale::kBf16 ? 2
                                                                              : 1;
        return divide_up(rows_, info_.scale_rows) * divide_up(cols, group_) * size;
    }

    size_t zero_bytes(size_t cols) const {
        const size_t groups = divide_up(cols, group_);
        if (!has_zeros_) return 0;
        return info_.layout == Layout::kRows ? rows_ * divide_up(groups, 2) : groups * rows_ / 2;
    }

    const FormatInfo& info_;
    const size_t rows_, group_;
    const Scale scale_;
    const bool has_zeros_;
    const Guarded data_, scales_, zeros_;
};

}  // namespace kt
