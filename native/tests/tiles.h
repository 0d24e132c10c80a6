// A model of the AMX tile instructions that prefill_amx-inl.h uses, so that its text runs on any machine.
// Written from the instructions' pseudocode; a use that the CPU would refuse ends the program.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace tiles {

struct Tile {
    size_t rows, row_bytes;
    uint8_t bytes[16][64];
};

struct State {
    bool configured = false;
    Tile tile[8];
};

inline thread_local State state;

[[noreturn]] inline void refuse(const char* why) {
    std::printf("a tile instruction would fault: %s\n", why);
    std::abort();
}

inline Tile& tile(int index) {
    if (!state.configured) refuse("no configuration");
    Tile& t = state.tile[index];
    if (t.rows == 0 || t.row_bytes == 0) refuse("tile not configured");
    return t;
}

inline float flush(float x) {
    return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

inline float widen(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return flush(value);
}

// A tile's values as float32; rows of 32.
inline void widen(const Tile& t, float (*values)[32]) {
    for (size_t row = 0; row < t.rows; ++row) {
        for (size_t i = 0; i < t.row_bytes / 2; ++i) {
            uint16_t bits;
            std::memcpy(&bits, t.bytes[row] + 2 * i, 2);
            values[row][i] = widen(bits);
        }
    }
}

template <class T>
T at(const Tile& t, size_t row, size_t index) {
    T value;
    std::memcpy(&value, t.bytes[row] + index * sizeof(T), sizeof(T));
    return value;
}

// A row of `count` pairs times a column of them, which lie 32 numbers apart: two fused sums, added in the
// end. Products of two bfloat16 are exact as doubles, and adding 24 bits to 16 there and rounding to float32
// is rounding once: the sums never come as near to the middle of two floats as 53 bits tell without being it.
// Unchecked, or it would be most of a sanitizer's time.
__attribute__((no_sanitize("address", "undefined"))) inline float pairs(const float* x, const float* w,
                                                                        size_t count) {
    float even = 0, odd = 0;
    for (size_t k = 0; k < count; ++k) {
        even = flush(static_cast<float>(even + static_cast<double>(x[2 * k]) * w[32 * k]));
        odd = flush(static_cast<float>(odd + static_cast<double>(x[2 * k + 1]) * w[32 * k + 1]));
    }
    return even + odd;
}

}  // namespace tiles

inline void _tile_loadconfig(const void* config) {
    const uint8_t* const bytes = static_cast<const uint8_t*>(config);
    if (bytes[0] != 1) tiles::refuse("palette");
    for (int i = 0; i < 8; ++i) {
        uint16_t row_bytes;
        std::memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
        if (row_bytes > 64 || bytes[48 + i] > 16) tiles::refuse("tile too big");
        tiles::state.tile[i] = {bytes[48 + i], row_bytes, {}};
    }
    tiles::state.configured = true;
}

inline void _tile_release() {
    tiles::state.configured = false;
}

inline void _tile_zero(int t) {
    std::memset(tiles::tile(t).bytes, 0, sizeof tiles::Tile::bytes);
}

inline void _tile_loadd(int t, const void* base, size_t stride) {
    tiles::Tile& tile = tiles::tile(t);
    std::memset(tile.bytes, 0, sizeof tile.bytes);
    for (size_t row = 0; row < tile.rows; ++row) {
        std::memcpy(tile.bytes[row], static_cast<const uint8_t*>(base) + row * stride, tile.row_bytes);
    }
}

inline void _tile_stored(int t, void* base, size_t stride) {
    const tiles::Tile& tile = tiles::tile(t);
    for (size_t row = 0; row < tile.rows; ++row) {
        std::memcpy(static_cast<uint8_t*>(base) + row * stride, tile.bytes[row], tile.row_bytes);
    }
}

inline void _tile_dpbf16ps(int to, int left, int right) {
    tiles::Tile& c = tiles::tile(to);
    const tiles::Tile &a = tiles::tile(left), &b = tiles::tile(right);
    if (c.rows != a.rows || c.row_bytes != b.row_bytes || a.row_bytes != 4 * b.rows) tiles::refuse("shapes");
    if (to == left || to == right || left == right) tiles::refuse("one tile twice");
    float x[16][32], w[16][32];
    tiles::widen(a, x);
    tiles::widen(b, w);
    for (size_t m = 0; m < c.rows; ++m) {
        for (size_t n = 0; n < c.row_bytes / 4; ++n) {
            const float both = tiles::pairs(x[m], &w[0][2 * n], b.rows);
            const float all = tiles::flush(tiles::flush(tiles::at<float>(c, m, n)) + tiles::flush(both));
            std::memcpy(c.bytes[m] + 4 * n, &all, 4);
        }
    }
}
