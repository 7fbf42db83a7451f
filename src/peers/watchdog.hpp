// Watches the processes of a group: one thread that sleeps on their sockets. The end of a
// connection without a goodbye is a loss; it is passed on to all ranks and to whoever asked to be
// told.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "peers/socket.hpp"

namespace xstage::peers {

class Watchdog {
 public:
  // Told once, from the watchdog's thread or from inside abort() or add().
  using Sink = std::function<void(const std::string& reason)>;

  // `life[i]` is the socket to rank i; empty ones are not watched.
  Watchdog(std::vector<Socket> life, std::vector<pid_t> pids);
  ~Watchdog();  // leaves
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  [[nodiscard]] std::string lost() const;
  void abort(std::string_view reason) noexcept;
  // After remove() has returned the sink is not called any more.
  int add(Sink sink);
  void remove(int id) noexcept;
  void leave() noexcept;  // idempotent

 private:
  void watch();
  // True if the socket has nothing more to say.
  bool hear(std::size_t rank);
  void spread(const std::string& reason, std::size_t except_rank);

  std::vector<Socket> life_;
  std::vector<pid_t> pids_;
  UniqueFd wake_;
  std::thread thread_;
  mutable std::mutex mutex_;  // guards what follows
  std::string lost_;
  std::map<int, Sink> sinks_;
  int next_id_ = 0;
};

}  // namespace xstage::peers
