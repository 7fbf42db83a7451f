#include "xstage/group.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "peers/group_impl.hpp"
#include "xstage/error.hpp"

namespace xstage {

using peers::Deadline;
using peers::Message;
using peers::MessageType;
using peers::ReceiveResult;
using peers::UniqueFd;

Group::Impl::Impl(const LaunchInfo& launch_info, const GroupOptions& group_options)
    : Impl(launch_info, group_options, peers::rendezvous(launch_info, group_options)) {}

Group::Impl::Impl(const LaunchInfo& launch_info, const GroupOptions& group_options,
                  peers::Links links)
    : launch(launch_info),
      options(group_options),
      control(std::move(links.control)),
      pids(links.pids),
      watchdog(std::move(links.life), std::move(links.pids)) {}

Error Group::Impl::loss(std::size_t rank, std::string_view what) const {
  const std::string known = watchdog.lost();
  if (!known.empty()) return {ErrorCategory::timeout, std::string(what) + ": " + known};
  std::string text = std::string(what) + ": rank " + std::to_string(rank) + " left or was lost";
  if (rank < pids.size() && pids[rank] != 0) {
    text += " (process " + std::to_string(pids[rank]) + ")";
  }
  return {ErrorCategory::timeout, text};
}

std::vector<Group::Impl::Contribution> Group::Impl::exchange(std::string_view payload, UniqueFd fd,
                                                             std::string_view what) {
  if (payload.size() > peers::kMaxPayload) {
    throw Error(ErrorCategory::usage, std::string(what) + ": " + std::to_string(payload.size()) +
                                          " bytes, at most " + std::to_string(peers::kMaxPayload));
  }
  const std::string lost = watchdog.lost();
  if (!lost.empty()) throw Error(ErrorCategory::timeout, std::string(what) + ": " + lost);
  std::vector<Contribution> all(static_cast<std::size_t>(launch.num_ranks));
  Contribution& mine = all[static_cast<std::size_t>(launch.rank)];
  mine.payload = payload;
  mine.fd = std::move(fd);
  ++sequence_;
  if (launch.num_ranks == 1) return all;
  return launch.rank == 0 ? exchange_at_hub(std::move(all), what)
                          : exchange_at_rank(std::move(all), what);
}

void Group::Impl::collect(std::vector<Contribution>& all, Deadline deadline,
                          std::string_view what) {
  std::vector<std::size_t> open;
  for (std::size_t rank = 1; rank < all.size(); ++rank) open.push_back(rank);
  while (!open.empty()) {
    std::vector<int> fds;
    for (const std::size_t rank : open) fds.push_back(control[rank].fd());
    const auto ready = std::make_unique<bool[]>(fds.size());
    if (!peers::wait_readable(fds.data(), ready.get(), fds.size(), deadline)) {
      throw Error(ErrorCategory::timeout, std::string(what) + ": no word from rank " +
                                              std::to_string(open.front()) + " in time");
    }
    std::vector<std::size_t> still;
    for (std::size_t i = 0; i < open.size(); ++i) {
      const std::size_t rank = open[i];
      if (!ready[i]) {
        still.push_back(rank);
        continue;
      }
      Message message;
      const ReceiveResult result = control[rank].receive(message, deadline);
      if (result == ReceiveResult::closed) throw loss(rank, what);
      if (result != ReceiveResult::message || message.type != MessageType::gather ||
          message.sequence != sequence_) {
        throw Error(ErrorCategory::runtime,
                    std::string(what) + ": rank " + std::to_string(rank) +
                        " sent something else: all ranks must make the same calls in one order");
      }
      all[rank] = {std::move(message.payload), std::move(message.fd)};
    }
    open = std::move(still);
  }
}

void Group::Impl::distribute(const std::vector<Contribution>& all, Deadline deadline) const {
  for (std::size_t from = 0; from < all.size(); ++from) {
    for (std::size_t to = 1; to < all.size(); ++to) {
      if (from == to) continue;  // it has its own
      Message message;
      message.type = MessageType::part;
      message.rank = static_cast<std::uint32_t>(from);
      message.sequence = sequence_;
      message.payload = all[from].payload;
      if (all[from].fd) {
        message.fd.reset(::fcntl(all[from].fd.get(), F_DUPFD_CLOEXEC, 0));
        if (!message.fd) throw Error(ErrorCategory::runtime, "out of file descriptors");
      }
      (void)control[to].send(message, deadline);  // a loss is the watchdog's affair
    }
  }
}

std::vector<Group::Impl::Contribution> Group::Impl::exchange_at_hub(std::vector<Contribution> all,
                                                                    std::string_view what) {
  const Deadline deadline = peers::after_ns(options.timeout_ns);
  try {
    collect(all, deadline, what);
    distribute(all, deadline);
  } catch (const Error& error) {
    Message message;
    message.type = MessageType::fail;
    message.sequence = sequence_;
    message.payload = peers::pack_error(error);
    for (const peers::Socket& socket : control) {
      if (socket) (void)socket.send(message, peers::Clock::now());
    }
    throw;
  }
  return all;
}

std::vector<Group::Impl::Contribution> Group::Impl::exchange_at_rank(std::vector<Contribution> all,
                                                                     std::string_view what) {
  // Rank 0 knows better who is missing; give its message a little longer.
  const Deadline deadline = peers::after_ns(options.timeout_ns + 1'000'000'000);
  const peers::Socket& hub = control[0];
  {
    Message message;
    message.type = MessageType::gather;
    message.sequence = sequence_;
    Contribution& mine = all[static_cast<std::size_t>(launch.rank)];
    message.payload = mine.payload;
    if (mine.fd) message.fd.reset(::fcntl(mine.fd.get(), F_DUPFD_CLOEXEC, 0));
    if (mine.fd && !message.fd) throw Error(ErrorCategory::runtime, "out of file descriptors");
    if (!hub.send(message, deadline)) throw loss(0, what);
  }
  for (std::size_t parts = 1; parts < all.size(); ++parts) {
    Message message;
    switch (hub.receive(message, deadline)) {
      case ReceiveResult::message:
        break;
      case ReceiveResult::closed:
        throw loss(0, what);
      case ReceiveResult::nothing:
        throw Error(ErrorCategory::timeout, std::string(what) + ": no word from rank 0 in time");
      case ReceiveResult::nonsense:
        throw Error(ErrorCategory::runtime, std::string(what) + ": rank 0 sent nonsense");
    }
    if (message.type == MessageType::fail) throw peers::unpack_error(message.payload);
    if (message.type != MessageType::part || message.sequence != sequence_ ||
        message.rank >= all.size()) {
      throw Error(ErrorCategory::runtime,
                  std::string(what) + ": ranks must make the same calls in one order");
    }
    all[message.rank] = {std::move(message.payload), std::move(message.fd)};
  }
  return all;
}

Group Group::join(const LaunchInfo& launch, const GroupOptions& options) {
  Group group(std::make_shared<Impl>(launch, options));
  group.launch_ = launch;
  return group;
}

Group::Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&& other) noexcept {
  if (this == &other) return *this;
  leave();
  impl_ = std::move(other.impl_);
  launch_ = std::move(other.launch_);
  return *this;
}
Group::~Group() {
  leave();
}

int Group::rank() const noexcept {
  return launch_.rank;
}
int Group::num_ranks() const noexcept {
  return launch_.num_ranks;
}
const LaunchInfo& Group::launch() const noexcept {
  return launch_;
}

std::shared_ptr<Group::Impl> Group::impl() const {
  if (impl_ == nullptr) throw Error(ErrorCategory::usage, "this group has been left");
  return impl_;
}

std::vector<std::string> Group::all_gather(std::string_view mine) {
  std::vector<std::string> texts;
  for (Impl::Contribution& each : impl()->exchange(mine, {}, "all_gather")) {
    texts.push_back(std::move(each.payload));
  }
  return texts;
}

void Group::barrier() {
  (void)impl()->exchange("", {}, "barrier");
}

std::string Group::lost() const {
  return impl_ == nullptr ? "" : impl_->watchdog.lost();
}

void Group::abort(std::string_view reason) noexcept {
  if (impl_ != nullptr) impl_->watchdog.abort(reason);
}

void Group::leave() noexcept {
  impl_.reset();
}

}  // namespace xstage
