#include "peers/watchdog.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "xstage/error.hpp"

namespace xstage::peers {
namespace {

constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

// A dying process closes its files from the highest number down, and closing those of the GPU's
// driver takes some tenths of a second. Watched sockets move above them, so that a loss shows
// first.
void move_up(Socket& socket) {
  constexpr int kAbove = 900;  // below the usual limit of 1024
  const int raised = ::fcntl(socket.fd(), F_DUPFD_CLOEXEC, kAbove);
  if (raised >= 0) socket = Socket(UniqueFd(raised));
}

}  // namespace

Watchdog::Watchdog(std::vector<Socket> life, std::vector<pid_t> pids)
    : life_(std::move(life)), pids_(std::move(pids)) {
  const bool any = std::any_of(life_.begin(), life_.end(),
                               [](const Socket& socket) { return static_cast<bool>(socket); });
  if (!any) return;
  for (Socket& socket : life_) {
    if (socket) move_up(socket);
  }
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) throw Error(ErrorCategory::runtime, "eventfd failed");
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  leave();
}

std::string Watchdog::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void Watchdog::abort(std::string_view reason) noexcept {
  try {
    spread(std::string(reason), kNobody);
  } catch (...) {  // out of memory: the deadlines of waits remain
  }
}

int Watchdog::add(Sink sink) {
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) sink(lost_);
  sinks_.emplace(next_id_, std::move(sink));
  return next_id_++;
}

void Watchdog::remove(int id) noexcept {
  const std::lock_guard lock(mutex_);
  sinks_.erase(id);
}

void Watchdog::leave() noexcept {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
  Message message;
  message.type = MessageType::bye;
  for (const Socket& socket : life_) {
    if (socket) (void)socket.send(message, Clock::now());
  }
  life_.clear();
}

void Watchdog::watch() {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < life_.size(); ++rank) {
    if (life_[rank]) ranks.push_back(rank);
  }
  while (true) {
    std::vector<int> fds{wake_.get()};
    for (const std::size_t rank : ranks) fds.push_back(life_[rank].fd());
    const auto ready = std::make_unique<bool[]>(fds.size());
    (void)wait_readable(fds.data(), ready.get(), fds.size(), after_ns(60'000'000'000));
    if (ready[0]) return;
    std::vector<std::size_t> still;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (!ready[i + 1] || !hear(ranks[i])) still.push_back(ranks[i]);
    }
    ranks = std::move(still);
  }
}

bool Watchdog::hear(std::size_t rank) {
  Message message;
  switch (life_[rank].receive(message, Clock::now())) {
    case ReceiveResult::nothing:
      return false;
    case ReceiveResult::message:
      if (message.type == MessageType::bye) return true;
      if (message.type == MessageType::stop) spread(message.payload, rank);
      return false;
    case ReceiveResult::nonsense:
      return false;
    case ReceiveResult::closed:
      break;
  }
  std::string reason = "rank " + std::to_string(rank) + " was lost";
  if (rank < pids_.size() && pids_[rank] != 0) {
    reason += " (process " + std::to_string(pids_[rank]) + " ended without leaving)";
  }
  spread(reason, rank);
  return true;
}

void Watchdog::spread(const std::string& reason, std::size_t except_rank) {
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) return;
  lost_ = reason.empty() ? std::string("stopped without a reason") : reason;
  for (const auto& [id, sink] : sinks_) sink(lost_);
  Message message;
  message.type = MessageType::stop;
  message.payload = lost_.substr(0, kMaxPayload);
  for (std::size_t rank = 0; rank < life_.size(); ++rank) {
    if (rank != except_rank && life_[rank]) (void)life_[rank].send(message, Clock::now());
  }
}

}  // namespace xstage::peers
