#include "kt/relay.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <utility>

namespace kt {
namespace {

using Clock = std::chrono::steady_clock;

// The clock is read once in so many looks: a look takes some 50 ns.
constexpr int kLooks = 1000;

void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

bool asked(const Question& question, Clock::time_point end) {
    const std::atomic_ref<uint32_t> word(*question.asked);
    for (int look = 1; word.load(std::memory_order_acquire) == 0; ++look) {
        if (look % kLooks == 0 && Clock::now() > end) return false;
        pause_cpu();
    }
    word.store(0, std::memory_order_relaxed);
    return true;
}

void answer(const Question& question) {
    std::atomic_ref<uint32_t>(*question.done).store(1, std::memory_order_release);
}

}  // namespace

void Relay::serve(std::chrono::duration<double> patience) {
    const auto wait = std::chrono::duration_cast<Clock::duration>(patience);
    std::exception_ptr error;
    for (const Question& question : questions_) {
        if (!asked(question, Clock::now() + wait)) {
            throw std::runtime_error("the device did not ask for the next layer's experts in time");
        }
        try {
            if (!error) question.experts->forward(question.call);
        } catch (...) {
            error = std::current_exception();
        }
        answer(question);
    }
    if (error) std::rethrow_exception(error);
}

void Relay::answer_from_host(void* question) noexcept {
    Question& own = *static_cast<Question*>(question);
    try {
        own.experts->forward(own.call);
    } catch (...) {
        own.error = std::current_exception();
    }
}

void Relay::check() {
    for (Question& question : questions_) {
        if (question.error) std::rethrow_exception(std::exchange(question.error, nullptr));
    }
}

}  // namespace kt
