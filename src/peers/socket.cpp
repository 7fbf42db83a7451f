#include "peers/socket.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "xstage/error.hpp"

namespace xstage::peers {
namespace {

// Bytes of every message. All processes run on one machine, so integers are native.
struct Header {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t type;
  std::uint32_t rank;
  std::uint32_t sequence;
  std::uint32_t payload_bytes;
  std::uint32_t reserved;
};
constexpr std::uint32_t kMagic = 0x58535447;  // "XSTG"
constexpr std::uint16_t kVersion = 1;

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCategory::runtime, what + ": " + std::strerror(errno));
}

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;
};

Address abstract_address(std::string_view name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  const std::size_t room = sizeof(result.address.sun_path) - 1;
  const std::size_t length = std::min(name.size(), room);
  std::memcpy(result.address.sun_path + 1, name.data(), length);  // a leading zero: abstract
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return result;
}

UniqueFd new_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail("socket");
  return fd;
}

bool wait_for(int fd, short events, Deadline deadline) noexcept {
  pollfd entry{fd, events, 0};
  while (true) {
    const int result = ::poll(&entry, 1, milliseconds_left(deadline));
    if (result > 0) return true;
    if (result < 0 && errno != EINTR) return false;
    if (Clock::now() >= deadline) return false;
  }
}

// Takes the descriptors of a received message; more than one is an error, and none may leak.
bool take_descriptors(msghdr& header, UniqueFd& fd) {
  std::vector<UniqueFd> taken;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int value = -1;
      std::memcpy(&value, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      taken.emplace_back(value);
    }
  }
  if (taken.size() > 1 || (header.msg_flags & MSG_CTRUNC) != 0) return false;
  if (taken.size() == 1) fd = std::move(taken.front());
  return true;
}

}  // namespace

int milliseconds_left(Deadline deadline) noexcept {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count() + 1;
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void UniqueFd::reset(int fd) noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Socket Socket::listen_at(std::string_view name, int backlog) {
  UniqueFd fd = new_socket();
  const Address address = abstract_address(name);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.length) != 0) {
    if (errno == EADDRINUSE) return {};
    fail("bind");
  }
  if (::listen(fd.get(), backlog) != 0) fail("listen");
  return Socket(std::move(fd));
}

Socket Socket::connect_to(std::string_view name) {
  UniqueFd fd = new_socket();
  const Address address = abstract_address(name);
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.length) !=
         0) {
    if (errno == EINTR) continue;
    if (errno == ECONNREFUSED || errno == EAGAIN) return {};  // nobody, or too many at once
    fail("connect");
  }
  return Socket(std::move(fd));
}

Socket Socket::accept() const {
  const int fd = ::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) return Socket(UniqueFd(fd));
  if (errno == EMFILE || errno == ENFILE) fail("accept");
  return {};
}

PeerCredentials Socket::credentials() const {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    fail("getsockopt(SO_PEERCRED)");
  }
  return {credentials.pid, credentials.uid};
}

bool Socket::send(const Message& message, Deadline deadline) const noexcept {
  if (message.payload.size() > kMaxPayload) return false;
  Header header{kMagic,
                kVersion,
                static_cast<std::uint16_t>(message.type),
                message.rank,
                message.sequence,
                static_cast<std::uint32_t>(message.payload.size()),
                0};
  iovec parts[2] = {{&header, sizeof header},
                    {const_cast<char*>(message.payload.data()), message.payload.size()}};
  msghdr envelope{};
  envelope.msg_iov = parts;
  envelope.msg_iovlen = 2;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (message.fd) {
    envelope.msg_control = control.data();
    envelope.msg_controllen = control.size();
    cmsghdr* entry = CMSG_FIRSTHDR(&envelope);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = message.fd.get();
    std::memcpy(CMSG_DATA(entry), &fd, sizeof fd);
  }
  while (::sendmsg(fd_.get(), &envelope, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    if (!wait_for(fd_.get(), POLLOUT, deadline)) return false;
  }
  return true;
}

ReceiveResult Socket::receive(Message& message, Deadline deadline) const {
  Header header{};
  std::string payload(kMaxPayload, '\0');
  iovec parts[2] = {{&header, sizeof header}, {payload.data(), payload.size()}};
  // Room for a few descriptors, so that a sender of several is told apart and none leaks.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control{};
  msghdr envelope{};
  ssize_t received = 0;
  while (true) {
    envelope = {};
    envelope.msg_iov = parts;
    envelope.msg_iovlen = 2;
    envelope.msg_control = control.data();
    envelope.msg_controllen = control.size();
    received = ::recvmsg(fd_.get(), &envelope, MSG_CMSG_CLOEXEC);
    if (received >= 0) break;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return ReceiveResult::closed;
    if (!wait_for(fd_.get(), POLLIN, deadline)) return ReceiveResult::nothing;
  }
  UniqueFd fd;
  const bool descriptors_fine = take_descriptors(envelope, fd);
  if (received == 0) return ReceiveResult::closed;
  const auto bytes = static_cast<std::size_t>(received);
  if (!descriptors_fine || (envelope.msg_flags & MSG_TRUNC) != 0 || bytes < sizeof header ||
      header.magic != kMagic || header.version != kVersion ||
      header.payload_bytes != bytes - sizeof header) {
    return ReceiveResult::nonsense;
  }
  payload.resize(header.payload_bytes);
  message.type = static_cast<MessageType>(header.type);
  message.rank = header.rank;
  message.sequence = header.sequence;
  message.payload = std::move(payload);
  message.fd = std::move(fd);
  return ReceiveResult::message;
}

bool wait_readable(const int* fds, bool* ready, std::size_t count, Deadline deadline) {
  std::vector<pollfd> entries(count);
  for (std::size_t i = 0; i < count; ++i) entries[i] = {fds[i], POLLIN, 0};
  bool any = false;
  do {
    const int result =
        ::poll(entries.data(), static_cast<nfds_t>(count), milliseconds_left(deadline));
    if (result < 0 && errno != EINTR) fail("poll");
    any = result > 0;
  } while (!any && Clock::now() < deadline);
  for (std::size_t i = 0; i < count; ++i) ready[i] = entries[i].revents != 0;
  return any;
}

}  // namespace xstage::peers
