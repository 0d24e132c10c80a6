// Any bits as a weight: what packs, decodes and multiplies it, on every tier that this CPU runs.
//
//   kt_fuzz SECONDS [SEED [FORMAT...]]: SECONDS of CPU time, shared evenly among the formats (none named:
//   all).
//
// A case is made from a number alone, so what fails is run again by `kt_fuzz case NUMBER FORMAT`. Arrays
// begin behind or end before a page that nobody may touch, so that reads outside them are found with and
// without sanitizers. One case in four describes its arrays wrongly: that must be refused, or else be as
// harmless as the truth.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <vector>

#include "kt/matrix.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

using namespace kt;

// What is being run, for whoever has to say where it ended.
std::string current_format;
uint64_t current_case;

[[noreturn]] void fail(const char* what, const char* tier) {
    std::printf("%s: %s\nagain: kt_fuzz case %llu %s\n", tier, what,
                static_cast<unsigned long long>(current_case), current_format.c_str());
    std::fflush(stdout);
    std::_Exit(1);
}

[[maybe_unused]] void on_signal(int) {
    fail("a signal: memory that is not the array's, or an instruction that this CPU has not", "?");
}

// A sanitizer says what and where itself.
[[maybe_unused]] void on_report() {
    fail("see above", "?");
}

void watch() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(on_report);
#else
    for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) std::signal(signal, on_signal);
#endif
}

// Sebastiano Vigna's splitmix64.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    size_t below(size_t n) { return next() % n; }
    bool one_in(size_t n) { return below(n) == 0; }

  private:
    uint64_t state_;
};

// Memory between two pages that nobody may touch, used again for case after case.
class Arena {
  public:
    // `bytes` bytes at one of its ends.
    uint8_t* take(size_t bytes, bool at_end) {
        if (bytes > size_) grow(bytes);
        return at_end ? base_ + size_ - bytes : base_;
    }

  private:
    void grow(size_t bytes) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        size_ = divide_up(bytes, page) * page;  // what there was stays mapped: it happens a few times
        void* const all = mmap(nullptr, size_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<uint8_t*>(all) + page;
        if (mprotect(base_, size_, PROT_READ | PROT_WRITE)) throw std::bad_alloc();
    }

    uint8_t* base_ = nullptr;
    size_t size_ = 0;
};

enum { kData, kScaleArray, kZeroArray, kPacked, kPrepared, kDecoded, kArenas };
std::array<Arena, kArenas> arenas;

// Bits of one kind: any, the same byte everywhere, few different bytes, or plain numbers' upper bytes.
void fill(Random& random, uint8_t* p, size_t bytes) {
    static constexpr uint8_t kEdges[] = {0x00, 0x01, 0x0f, 0x7c, 0x7e, 0x7f, 0x80,
                                         0x87, 0x88, 0xf0, 0xfc, 0xfe, 0xff};
    const size_t kind = random.below(4);
    const uint8_t same = kEdges[random.below(sizeof kEdges)];
    for (size_t i = 0; i < bytes; ++i) {
        const uint64_t bits = random.next();
        p[i] = static_cast<uint8_t>(kind == 0   ? bits
                                    : kind == 1 ? same
                                    : kind == 2 ? kEdges[bits % sizeof kEdges]
                                                : (i % 2 ? 0x2c + bits % 16 : bits));
    }
}

StoredArray array(Random& random, size_t arena, size_t rows, size_t row_bytes) {
    if (rows == 0) return {};
    const size_t stride = row_bytes + (random.one_in(2) ? 0 : random.below(9));
    const size_t bytes = (rows - 1) * stride + row_bytes;
    uint8_t* const p = arenas[arena].take(bytes, !random.one_in(4));
    fill(random, p, bytes);
    return {p, rows, row_bytes, stride};
}

constexpr std::string_view kScaleNames[kScales] = {"", "F32", "F16", "BF16", "E8M0", "E4M3"};

// A weight of a format, described truly.
Description describe(Random& random, const FormatInfo& info) {
    static constexpr size_t kBytes[kScales] = {0, 4, 2, 2, 1, 1};
    Description d;
    d.format = info.name;
    d.rows = 1 + random.below(40);
    d.cols =
        info.block == 1 ? 1 + random.below(100) : info.block * (1 + random.below(info.block < 256 ? 7 : 3));
    const bool has_zeros =
        info.zeros == Zeros::kAlways || (info.zeros == Zeros::kOptional && random.one_in(2));
    if (info.layout == Layout::kAwq || (info.layout == Layout::kGptq && has_zeros)) {
        d.rows = divide_up(d.rows, 8) * 8;
    }
    size_t group = info.group == kWholeRow ? d.cols : info.group;
    if (info.scale_kinds && !group) {
        d.group = group = kGroup * (1 + random.below(4));
        d.cols = group * (1 + random.below(4));
    }
    const size_t groups = group ? divide_up(d.cols, group) : 0;
    size_t kind = 0;
    while (info.scale_kinds && !(info.scale_kinds >> kind & 1)) kind = random.below(kScales);
    d.scale = kScaleNames[kind];
    if (info.multiplier && random.one_in(2)) {
        d.multiplier = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
    }
    if (info.layout == Layout::kRows) {
        d.data = array(random, kData, d.rows, d.cols / info.block * info.block_bytes);
        d.scales =
            array(random, kScaleArray, group ? divide_up(d.rows, info.scale_rows) : 0, groups * kBytes[kind]);
        if (has_zeros) d.zeros = array(random, kZeroArray, d.rows, divide_up(groups, 2));
        return d;
    }
    const size_t words = d.rows / 8 * 4;
    d.data = info.layout == Layout::kGptq ? array(random, kData, d.cols / 8, 4 * d.rows)
                                          : array(random, kData, d.cols, words);
    d.scales = array(random, kScaleArray, groups, d.rows * kBytes[kind]);
    if (has_zeros) d.zeros = array(random, kZeroArray, groups, words);
    return d;
}

size_t other_size(Random& random, size_t size) {
    const size_t sizes[] = {0,        size - 1,  size + 1,        size * 2,        size / 2,
                            size + 8, size + 16, size_t{1} << 31, size_t{1} << 62, SIZE_MAX};
    return sizes[random.below(std::size(sizes))];
}

// Says something untrue about the weight, but promises no memory that is not there.
void lie(Random& random, const Kernels& kernels, Description& d) {
    StoredArray* const arrays[] = {&d.data, &d.scales, &d.zeros};
    StoredArray& array = *arrays[random.below(3)];
    size_t formats = 0;
    while (formats < kFormatSlots && kernels.formats[formats].info) ++formats;
    switch (random.below(8)) {
        case 0:
            d.rows = other_size(random, d.rows);
            break;
        case 1:
            d.cols = other_size(random, d.cols);
            break;
        case 2:
            d.group = other_size(random, d.group);
            break;
        case 3:
            d.scale = random.one_in(9) ? "F8" : kScaleNames[random.below(kScales)];
            break;
        case 4:
            d.format = kernels.formats[random.below(formats)].info->name;
            break;
        case 5:
            array = {};
            break;
        case 6:
            array.rows -= array.rows > 0;
            break;
        case 7:
            array.row_bytes -= array.row_bytes > 0;
            break;
    }
}

bool same_float(const void* a, const void* b) {
    float x, y;
    std::memcpy(&x, a, 4);
    std::memcpy(&y, b, 4);
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (std::isnan(x) && std::isnan(y));
}

// As words. The CPU, where it converts a scale, makes a NaN quiet, and a NaN's sign is the compiler's choice.
bool same_words(const void* a, const void* b, size_t bytes) {
    const uint8_t *x = static_cast<const uint8_t*>(a), *y = static_cast<const uint8_t*>(b);
    for (size_t i = 0; i < bytes / 4; ++i) {
        if (!same_float(x + 4 * i, y + 4 * i)) return false;
    }
    return std::memcmp(x + bytes / 4 * 4, y + bytes / 4 * 4, bytes % 4) == 0;
}

// What panels begin as: on the scalar tier, and on the others. So what is not written differs, and must not
// be read: decoded weights are compared below. NVFP4 leaves half of its last chunk where 64 does not divide
// the columns.
constexpr uint8_t kFirst = 0xa5, kOther = 0x5a;

bool same_panels(const std::vector<uint8_t>& first, const uint8_t* packed, bool is_first) {
    for (size_t i = 0; i + 4 <= first.size(); i += 4) {
        if (same_float(&first[i], packed + i)) continue;
        for (size_t b = i; b < i + 4; ++b) {
            const bool unwritten = !is_first && first[b] == kFirst && packed[b] == kOther;
            if (first[b] == packed[b] || unwritten) continue;
            std::printf("byte %zu of %zu is %02x in place of %02x\n", b, first.size(), packed[b], first[b]);
            return false;
        }
    }
    return true;
}

// A NaN that no arithmetic makes: marks what has not been written.
constexpr uint32_t kUnwritten = 0x7fb5a5a5;

// Some rows against all panels: every output must be written, and a row alone must give the same bits.
void multiply(Random& random, const Kernels& k, const StoredMatrix& m, const uint8_t* packed) {
    const FormatEntry& format = k.formats[m.format];
    const size_t panels = divide_up(m.rows, kPanelRows), panel_bytes = format.panel_bytes(m),
                 width = panels * kPanelRows;
    const size_t tokens = 1 + random.below(10), row_bytes = prepared_bytes(format.info->policy, m.cols);
    uint8_t* const prepared = arenas[kPrepared].take(tokens * row_bytes, true);
    std::vector<float> x(m.cols), out(tokens * width, std::bit_cast<float>(kUnwritten)), alone(width);
    std::vector<const uint8_t*> rows;
    for (size_t t = 0; t < tokens; ++t) {
        for (float& value : x) {
            value = static_cast<float>(static_cast<int64_t>(random.next()) >> random.below(62));
            if (random.one_in(200)) value = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
        }
        rows.push_back(prepared + t * row_bytes);
        k.prepare[static_cast<size_t>(format.info->policy)](x.data(), 0, m.cols, prepared + t * row_bytes);
    }
    format.matmul({packed, panel_bytes, panels, m.cols, rows.data(), tokens, out.data(), width});
    for (const float value : out) {
        if (std::bit_cast<uint32_t>(value) == kUnwritten) fail("an output was not written", k.name);
    }
    const size_t one = random.below(tokens);
    format.matmul({packed, panel_bytes, panels, m.cols, &rows[one], 1, alone.data(), width});
    if (!same_words(alone.data(), &out[one * width], 4 * width)) fail("a row alone gives other bits", k.name);
}

// The scalar tier has no fused multiply-add: where it overflows (scales from 2^124 on) others need not, and
// with scales of 24 bits its product is rounded before the zero point's is taken off, which may turn one
// rounding to bfloat16. The tier with bfloat16 instructions takes subnormals for zero.
bool same_value(uint16_t value, uint16_t expected, Scale scale) {
    const bool finite = (expected & 0x7f80) != 0x7f80;
    const bool tiny = (value & 0x7fff) <= 0x80 && (expected & 0x7fff) <= 0x80;
    const bool next = scale == Scale::kF32 && std::abs(value - expected) == 1;
    return value == expected || !finite || tiny || next;
}

// All columns at once, and the last step alone.
void decode(const Kernels& k, const StoredMatrix& m, const uint8_t* packed, std::vector<uint16_t>& expected) {
    const FormatEntry& format = k.formats[m.format];
    if (!format.unpack) return;
    const size_t step = format.info->step, cols = divide_up(m.cols, step) * step, panel = kPanelRows * cols;
    const size_t count = divide_up(m.rows, kPanelRows), last = kPanelRows * step;
    std::vector<uint16_t> all;
    for (size_t p = 0; p < count; ++p) {
        const uint8_t* const from = packed + p * format.panel_bytes(m);
        uint16_t* const out = reinterpret_cast<uint16_t*>(arenas[kDecoded].take(2 * panel, true));
        format.unpack(from, 0, cols, out);
        all.insert(all.end(), out, out + panel);
        format.unpack(from, cols - step, cols, out + panel - last);
        if (std::memcmp(out + panel - last, &all[all.size() - last], 2 * last)) {
            fail("a step alone decodes to other bits", k.name);
        }
    }
    if (expected.empty()) expected = all;
    for (size_t i = 0; i < all.size(); ++i) {
        if (same_value(all[i], expected[i], m.scale)) continue;
        std::printf("%04x for %04x at %zu, %zu x %zu, group %zu\n", all[i], expected[i], i, m.rows, m.cols,
                    m.group);
        fail("decodes to other bits than the scalar tier", k.name);
    }
}

std::vector<const Kernels*> runnable_kernels() {
    std::vector<const Kernels*> out;
    for (const Tier& tier : tiers()) {
        if (runnable(tier, cpu_features())) out.push_back(&kernels(tier.name));
    }
    return out;
}

void run(std::string_view name, uint64_t number) {
    static const std::vector<const Kernels*> all = runnable_kernels();
    current_format = name;
    current_case = number;
    Random random(number);
    const Kernels& oracle = *all[0];
    Description d = describe(random, *oracle.formats[oracle.format(name)].info);
    const bool lied = random.one_in(4);
    if (lied) lie(random, oracle, d);
    StoredMatrix m;
    try {
        m = stored_matrix(oracle, d);
    } catch (const std::invalid_argument&) {
        if (!lied) fail("a true description was refused", "?");
        return;
    }
    const size_t panels = divide_up(m.rows, kPanelRows),
                 panel_bytes = oracle.formats[m.format].panel_bytes(m);
    std::vector<uint8_t> first;
    std::vector<uint16_t> decoded;
    for (const Kernels* k : all) {
        uint8_t* const packed = arenas[kPacked].take(panels * panel_bytes, true);
        std::memset(packed, first.empty() ? kFirst : kOther, panels * panel_bytes);
        for (size_t p = 0; p < panels; ++p) {
            k->formats[m.format].pack(m, p * kPanelRows, packed + p * panel_bytes);
        }
        if (first.empty()) first.assign(packed, packed + panels * panel_bytes);
        if (!same_panels(first, packed, k == all[0])) fail("packs other bytes than the scalar tier", k->name);
        decode(*k, m, packed, decoded);
        multiply(random, *k, m, packed);
    }
}

// Cases of one format until so much CPU time has passed; how many there were.
uint64_t run_for(const char* format, uint64_t seed, double seconds) {
    const std::clock_t end = std::clock() + static_cast<std::clock_t>(seconds * CLOCKS_PER_SEC);
    uint64_t count = 0;
    while (std::clock() < end) run(format, Random(seed + count++).next());
    return count;
}

}  // namespace

int main(int argc, char** argv) {
    watch();
    if (argc == 4 && std::string_view(argv[1]) == "case") {
        run(argv[3], std::strtoull(argv[2], nullptr, 10));
        return 0;
    }
    if (argc < 2) {
        std::puts("kt_fuzz SECONDS [SEED [FORMAT...]] | kt_fuzz case NUMBER FORMAT");
        return 2;
    }
    std::vector<const char*> formats(argv + std::min(argc, 3), argv + argc);
    const Kernels& oracle = kernels("scalar");
    for (size_t f = 0; argc < 4 && f < kFormatSlots && oracle.formats[f].info; ++f) {
        formats.push_back(oracle.formats[f].info->name);
    }
    const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const double each = std::atof(argv[1]) / static_cast<double>(formats.size());
    for (const char* format : formats) {
        const uint64_t count = run_for(format, seed, each);
        std::printf("%s: %llu cases\n", format, static_cast<unsigned long long>(count));
        std::fflush(stdout);
    }
}
