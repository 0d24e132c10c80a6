#pragma once

#include <chrono>
#include <deque>
#include <exception>

#include "kt/experts.h"

namespace kt {

// What a device's stream asks the CPU for in a replayed step: the experts of one layer. Where it asks by
// words, it writes 1 to `asked` once the call's inputs are in place, and waits until `done` is 1, having set
// that to 0 before. Both lie in memory that the device reaches, on cache lines of their own.
struct Question {
    const Experts* experts;
    ExpertsCall call;
    uint32_t* asked;
    uint32_t* done;
    std::exception_ptr error = nullptr;
};

// The questions of a step, in the order in which they are added and asked. Their addresses stay.
class Relay {
  public:
    Question* add(const Question& question) { return &questions_.emplace_back(question); }
    size_t size() const { return questions_.size(); }

    // Answers every question once, on this thread and its pool's. Throws what an answer throws, once the
    // device has its way through the step, and std::runtime_error when it does not ask for `patience`.
    void serve(std::chrono::duration<double> patience);

    // For a thread of the device's driver, which calls this with a question's address in the stream's order.
    static void answer_from_host(void* question) noexcept;
    // Throws what answer_from_host has kept, once.
    void check();

  private:
    std::deque<Question> questions_;
};

}  // namespace kt
