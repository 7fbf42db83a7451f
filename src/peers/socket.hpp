// Unix sockets in the abstract namespace with message boundaries, deadlines, descriptors and a
// check of who is on the other side. Nothing here knows what the messages mean.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace xstage::peers {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

[[nodiscard]] inline Deadline after_ns(std::uint64_t ns) {
  return Clock::now() + std::chrono::nanoseconds(ns);
}
// For poll(): at least 0, at most a minute.
[[nodiscard]] int milliseconds_left(Deadline deadline) noexcept;

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

inline constexpr std::size_t kMaxPayload = 60 * 1024;

enum class MessageType : std::uint16_t {
  hello = 1,  // who I am
  welcome,    // everybody has come
  gather,     // my contribution
  part,       // one rank's contribution
  fail,       // the call failed for everybody; payload is category and text
  bye,        // I leave; the end of this connection is no loss
  stop,       // stop all waits; payload is the reason
};

struct Message {
  MessageType type = MessageType::hello;
  std::uint32_t rank = 0;      // whose contribution
  std::uint32_t sequence = 0;  // number of the collective call
  std::string payload;
  UniqueFd fd;  // at most one
};

enum class ReceiveResult {
  message,
  closed,    // end of file or reset
  nothing,   // not before the deadline
  nonsense,  // too large, truncated, another version, more descriptors than one
};

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

class Socket {
 public:
  Socket() = default;
  explicit Socket(UniqueFd fd) noexcept : fd_(std::move(fd)) {}

  // Throws Error{runtime}; an address in use gives an empty Socket.
  static Socket listen_at(std::string_view name, int backlog);
  // An empty Socket if nobody listens.
  static Socket connect_to(std::string_view name);
  // An empty Socket if nobody has called.
  [[nodiscard]] Socket accept() const;

  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  void close() noexcept { fd_.reset(); }

  [[nodiscard]] PeerCredentials credentials() const;  // throws Error{runtime}

  // False if the other side is gone or does not read until the deadline.
  [[nodiscard]] bool send(const Message& message, Deadline deadline) const noexcept;
  [[nodiscard]] ReceiveResult receive(Message& message, Deadline deadline) const;

 private:
  UniqueFd fd_;
};

// Readable end or pending message on any of `count` descriptors before the deadline.
[[nodiscard]] bool wait_readable(const int* fds, bool* ready, std::size_t count, Deadline deadline);

}  // namespace xstage::peers
