#include "kt/embedding.h"

#include <bit>
#include <cstring>

namespace kt {
namespace {

template <class T>
T load(const uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

float from_bf16(uint16_t bits) {
    return std::bit_cast<float>(uint32_t{bits} << 16);
}

// Exact: a float32 with the same digits and an exponent that is 112 too small, times 2^112, subnormals
// included.
float from_f16(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(std::bit_cast<float>(rest << 13) * 0x1p112f) | sign);
}

float half(const uint8_t* at) {
    return from_f16(load<uint16_t>(at));
}

void f32(const uint8_t* stored, size_t blocks, float* out) {
    std::memcpy(out, stored, blocks * sizeof(float));
}

void f16(const uint8_t* stored, size_t blocks, float* out) {
    for (size_t i = 0; i < blocks; ++i) out[i] = half(stored + 2 * i);
}

void bf16(const uint8_t* stored, size_t blocks, float* out) {
    for (size_t i = 0; i < blocks; ++i) out[i] = from_bf16(load<uint16_t>(stored + 2 * i));
}

// Blocks of 32: scale, and for kMinimum a minimum, then fifth bits if there are any, then nibbles.
template <bool kMinimum, bool kFifth>
void nibbles(const uint8_t* stored, size_t blocks, float* out) {
    constexpr size_t kBits = kMinimum ? 4 : 2, kQuants = kBits + (kFifth ? 4 : 0);
    constexpr int kZero = kMinimum ? 0 : kFifth ? 16 : 8;
    for (size_t b = 0; b < blocks; ++b, stored += kQuants + 16, out += 32) {
        const float scale = half(stored), minimum = kMinimum ? half(stored + 2) : 0.0f;
        const uint32_t fifth = kFifth ? load<uint32_t>(stored + kBits) : 0;
        for (int i = 0; i < 32; ++i) {
            const uint8_t byte = stored[kQuants + i % 16];
            const int q = (i < 16 ? byte & 15 : byte >> 4) | static_cast<int>(fifth >> i & 1) << 4;
            out[i] = static_cast<float>(q - kZero) * scale + minimum;
        }
    }
}

void q8_0(const uint8_t* stored, size_t blocks, float* out) {
    for (size_t b = 0; b < blocks; ++b, stored += 34, out += 32) {
        const float scale = half(stored);
        for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(stored[2 + i]));
    }
}

// Six-bit scale and minimum `i` of the eight of a super-block, packed in 12 bytes.
struct Pair {
    int scale, minimum;
};
Pair six_bits(const uint8_t* p, int i) {
    if (i < 4) return {p[i] & 63, p[i + 4] & 63};
    return {(p[i + 4] & 15) | (p[i - 4] >> 6) << 4, p[i + 4] >> 4 | (p[i] >> 6) << 4};
}

// Super-blocks of 256 in eight of 32: scale, minimum, packed scales, fifth bits if there are any, nibbles.
template <bool kFifth>
void super_nibbles(const uint8_t* stored, size_t blocks, float* out) {
    constexpr size_t kQuants = kFifth ? 48 : 16;
    for (size_t b = 0; b < blocks; ++b, stored += kQuants + 128, out += 256) {
        const float scale = half(stored), minimum = half(stored + 2);
        for (int sub = 0; sub < 8; ++sub) {
            const Pair pair = six_bits(stored + 4, sub);
            const float d = scale * static_cast<float>(pair.scale),
                        m = minimum * static_cast<float>(pair.minimum);
            for (int i = 0; i < 32; ++i) {
                const uint8_t byte = stored[kQuants + sub / 2 * 32 + i];
                const int fifth = kFifth ? stored[16 + i] >> sub & 1 : 0;
                const int q = (sub % 2 ? byte >> 4 : byte & 15) | fifth << 4;
                out[32 * sub + i] = d * static_cast<float>(q) - m;
            }
        }
    }
}

// Halves of 128 in eight of 16, each with an int8 scale: groups of 32 have their low nibbles in the first or
// the last 32 bytes of 64, and two upper bits each in the same 32 bytes.
void q6_k(const uint8_t* stored, size_t blocks, float* out) {
    for (size_t b = 0; b < blocks; ++b, stored += 210) {
        const float scale = half(stored + 208);
        for (int sub = 0; sub < 16; ++sub, out += 16) {
            const int part = sub / 8, group = sub % 8 / 2, first = sub % 2 * 16;
            const uint8_t* const low = stored + 64 * part + 32 * (group % 2) + first;
            const uint8_t* const high = stored + 128 + 32 * part + first;
            const float d = scale * static_cast<float>(static_cast<int8_t>(stored[192 + sub]));
            const int down = group < 2 ? 0 : 4;
            for (int i = 0; i < 16; ++i) {
                const int q = (low[i] >> down & 15) | (high[i] >> 2 * group & 3) << 4;
                out[i] = d * static_cast<float>(q - 32);
            }
        }
    }
}

struct Named {
    std::string_view format;
    DecodeFn decode;
};
constexpr Named kDecoders[] = {{"F32", f32},
                               {"F16", f16},
                               {"BF16", bf16},
                               {"Q4_0", nibbles<false, false>},
                               {"Q4_1", nibbles<true, false>},
                               {"Q5_0", nibbles<false, true>},
                               {"Q5_1", nibbles<true, true>},
                               {"Q8_0", q8_0},
                               {"Q4_K", super_nibbles<false>},
                               {"Q5_K", super_nibbles<true>},
                               {"Q6_K", q6_k}};

}  // namespace

DecodeFn row_decoder(std::string_view format) {
    for (const Named& named : kDecoders) {
        if (named.format == format) return named.decode;
    }
    return nullptr;
}

}  // namespace kt
