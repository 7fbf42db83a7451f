// The clock of the simulator: pending events in order of time, ties in order of scheduling, so
// equal input gives equal output bit for bit. Time is integer picoseconds.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace xstage::sim {

using Picoseconds = std::int64_t;

[[nodiscard]] inline Picoseconds from_ns(double ns) {
  return std::llround(ns * 1000.0);
}
[[nodiscard]] inline double to_ns(Picoseconds ps) {
  return static_cast<double>(ps) / 1000.0;
}

enum class EventKind : std::uint8_t {
  inject,
  port_done,
  ingress_done,
  deliver,
  pull_request,
  wake,
  step,
  data_here,
  fence
};

struct Event {
  Picoseconds time = 0;
  std::uint32_t sequence = 0;
  std::int32_t target = 0;  // what the kind says: a stage, a port, a worker, a message
  EventKind kind = EventKind::wake;
};

// A 4-ary heap: half as deep as a binary one, and the children of a node share a cache line or two.
class EventList {
 public:
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] Picoseconds now() const { return now_; }
  [[nodiscard]] std::int64_t num_popped() const { return num_popped_; }

  void schedule(Picoseconds time, EventKind kind, std::int32_t target) {
    const Event event{time < now_ ? now_ : time, next_sequence_++, target, kind};
    std::size_t at = heap_.size();
    heap_.push_back(event);
    while (at > 0) {
      const std::size_t parent = (at - 1) / 4;
      if (!before(event, heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }

  // Advances the clock. Precondition: not empty.
  Event pop() {
    const Event first = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    now_ = first.time;
    ++num_popped_;
    return first;
  }

 private:
  static bool before(const Event& a, const Event& b) {
    // Sequence numbers may wrap; events that coexist are less than 2^31 apart.
    return a.time < b.time ||
           (a.time == b.time && static_cast<std::int32_t>(a.sequence - b.sequence) < 0);
  }

  void sink(const Event& event) {
    const std::size_t size = heap_.size();
    std::size_t at = 0;
    for (;;) {
      const std::size_t first = 4 * at + 1;
      if (first >= size) break;
      const std::size_t end = first + 4 < size ? first + 4 : size;
      std::size_t least = first;
      for (std::size_t child = first + 1; child < end; ++child) {
        if (before(heap_[child], heap_[least])) least = child;
      }
      if (!before(heap_[least], event)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = event;
  }

  std::vector<Event> heap_;
  Picoseconds now_ = 0;
  std::uint32_t next_sequence_ = 0;
  std::int64_t num_popped_ = 0;
};

// Times of byte counts at a constant rate, without drift: what rounding leaves is carried over, so
// n calls for b bytes take exactly as long as one for n*b, to a picosecond.
class ExactRate {
 public:
  ExactRate() = default;
  explicit ExactRate(double bytes_per_ns)
      : bytes_per_ms_(std::llround(bytes_per_ns * 1e6) > 0 ? std::llround(bytes_per_ns * 1e6) : 1) {
  }

  [[nodiscard]] Picoseconds take(std::int64_t bytes) {
    const std::int64_t work = bytes * 1'000'000'000 + rest_;
    rest_ = work % bytes_per_ms_;
    return work / bytes_per_ms_;
  }

 private:
  std::int64_t bytes_per_ms_ = 1;
  std::int64_t rest_ = 0;
};

// First-in-first-out without allocation once it has grown; power-of-two ring.
template <class T>
class Fifo {
 public:
  [[nodiscard]] bool empty() const { return head_ == tail_; }
  [[nodiscard]] std::size_t size() const { return tail_ - head_; }
  [[nodiscard]] T& front() { return items_[head_ & (items_.size() - 1)]; }
  [[nodiscard]] T& operator[](std::size_t i) { return items_[(head_ + i) & (items_.size() - 1)]; }
  void pop() { ++head_; }
  void push(const T& item) {
    if (size() == items_.size()) grow();
    items_[tail_++ & (items_.size() - 1)] = item;
  }

 private:
  void grow() {
    std::vector<T> larger(items_.empty() ? 4 : items_.size() * 2);
    const std::size_t count = size();
    for (std::size_t i = 0; i < count; ++i) larger[i] = (*this)[i];
    items_.swap(larger);
    head_ = 0;
    tail_ = count;
  }
  std::vector<T> items_;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
};

}  // namespace xstage::sim
