// Attention and its pages with every buffer against a guard page: each tier against the scalar one.
#pragma once

#include "kt/attention.h"

namespace {

struct AttentionCase {
    PageLayout layout;
    size_t query_heads, queries, keys, window;
};

std::vector<float> attention_of(Pool& pool, const Kernels& k, const AttentionCase& c, const Guarded& pages) {
    const Guarded q(c.queries * c.query_heads * c.layout.key_size * 4),
        out(c.queries * c.query_heads * c.layout.value_size * 4), sinks(c.query_heads * 4), table(3 * 4);
    for (size_t i = 0; i < q.bytes() / 4; ++i) q.as<float>()[i] = static_cast<float>(i % 17) / 8 - 1;
    for (size_t i = 0; i < c.query_heads; ++i) sinks.as<float>()[i] = static_cast<float>(i) / 4;
    const int32_t order[] = {2, 0, 1}, lengths = static_cast<int32_t>(c.keys),
                  starts[] = {0, static_cast<int32_t>(c.queries)};
    std::memcpy(table.as<int32_t>(), order, sizeof order);
    std::memset(out.as<float>(), 0xff, out.bytes());
    Pool::Lease lease(pool);
    attend(lease, k,
           {.layout = c.layout,
            .pages = pages.as<uint8_t>(),
            .page_count = 3,
            .tables = table.as<int32_t>(),
            .table_stride = 3,
            .lengths = &lengths,
            .starts = starts,
            .sequences = 1,
            .q = q.as<float>(),
            .q_stride = c.query_heads * c.layout.key_size,
            .query_heads = c.query_heads,
            .out = out.as<float>(),
            .dtype = Dtype::kF32,
            .scale = 0.2f,
            .softcap = 30.0f,
            .window = c.window,
            .sinks = sinks.as<float>()});
    return {out.as<float>(), out.as<float>() + out.bytes() / 4};
}

// Pages that hold NaN but for the keys and values of c.keys slots.
void fill_pages(Pool& pool, const AttentionCase& c, const Guarded& pages) {
    const PageLayout& layout = c.layout;
    const Guarded keys(c.keys * layout.heads * layout.key_size * 4),
        values(c.keys * layout.heads * layout.value_size * 4), slots(c.keys * 8);
    for (const Guarded* rows : {&keys, &values}) {
        for (size_t i = 0; i < rows->bytes() / 4; ++i) rows->as<float>()[i] = random_value();
    }
    const int64_t order[] = {2, 0, 1};
    const int64_t page = static_cast<int64_t>(layout.page);
    for (int64_t i = 0; i < static_cast<int64_t>(c.keys); ++i) {
        slots.as<int64_t>()[i] = order[i / page] * page + i % page;
    }
    std::memset(pages.as<uint8_t>(), 0xff, pages.bytes());
    Pool::Lease lease(pool);
    write_pages(lease, {layout, pages.as<uint8_t>(), 3, slots.as<int64_t>(), c.keys, keys.as<float>(),
                        layout.shared ? nullptr : values.as<float>(), Dtype::kF32,
                        layout.heads * layout.key_size, layout.heads * layout.value_size});
}

void test_attention() {
    Pool pool(2);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
        for (const AttentionCase& c : {AttentionCase{{dtype, 2, 37, 21, 16, false}, 6, 7, 45, 20},
                                       AttentionCase{{dtype, 1, 64, 64, 512, false}, 9, 1, 1301, SIZE_MAX},
                                       AttentionCase{{dtype, 1, 48, 32, 16, true}, 5, 3, 48, SIZE_MAX}}) {
            const Guarded pages(3 * c.layout.page_bytes());
            fill_pages(pool, c, pages);
            const std::vector<float> expected = attention_of(pool, kernels("scalar"), c, pages);
            // a weight next to a tie may be rounded either way to bfloat16: 2^-7 of values below 1
            const float bound = dtype == Dtype::kF32 ? 1e-5f : 8e-3f;
            for (const Kernels* k : runnable_kernels()) {
                const std::vector<float> got = attention_of(pool, *k, c, pages);
                float worst = 0;
                for (size_t i = 0; i < got.size(); ++i) {
                    const float error = std::fabs(got[i] - expected[i]);
                    worst = std::isnan(worst) || error <= worst ? worst : error;
                }
                CHECK(worst <= bound, "%s, %zu keys: off by %g", k->name, c.keys, static_cast<double>(worst));
            }
        }
    }
}

}  // namespace
