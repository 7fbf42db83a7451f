#include "peers/rendezvous.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <sstream>
#include <thread>

#include "peers/topology_api.hpp"  // host_id

namespace xstage::peers {
namespace {

enum class Line { control, life };

// Who a caller says he is.
struct Hello {
  Line line = Line::control;
  int rank = -1;
  int num_ranks = 0;
  std::string host;
  std::string group;
  std::string job;
};

std::string pack(const Hello& hello) {
  std::ostringstream text;
  text << (hello.line == Line::control ? "control" : "life") << '\n'
       << hello.rank << '\n'
       << hello.num_ranks << '\n'
       << hello.host << '\n'
       << hello.group << '\n'
       << hello.job;
  return text.str();
}

bool parse_int(const std::string& text, int& value) {
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc{} && end == text.data() + text.size();
}

bool unpack(const std::string& payload, Hello& hello) {
  std::istringstream text(payload);
  std::string line;
  std::string rank;
  std::string num_ranks;
  if (!std::getline(text, line) || !std::getline(text, rank) || !std::getline(text, num_ranks) ||
      !std::getline(text, hello.host) || !std::getline(text, hello.group)) {
    return false;
  }
  std::getline(text, hello.job, '\0');
  if (line != "control" && line != "life") return false;
  hello.line = line == "control" ? Line::control : Line::life;
  return parse_int(rank, hello.rank) && parse_int(num_ranks, hello.num_ranks);
}

Hello hello_of(const LaunchInfo& launch, const GroupOptions& options, Line line) {
  return {line, launch.rank, launch.num_ranks, host_id(), options.name, launch.job};
}

std::string seconds_text(std::uint64_t ns) {
  std::ostringstream text;
  text << static_cast<double>(ns) / 1e9 << " s";
  return text.str();
}

// Rank 0's side.
class Reception {
 public:
  Reception(const LaunchInfo& launch, const GroupOptions& options)
      : me_(hello_of(launch, options, Line::control)),
        timeout_ns_(options.timeout_ns),
        deadline_(after_ns(options.timeout_ns)) {
    const auto count = static_cast<std::size_t>(launch.num_ranks);
    links_.control.resize(count);
    links_.life.resize(count);
    links_.pids.resize(count, 0);
    links_.pids[0] = getpid();
    open(socket_name(launch, options.name, geteuid()));
  }

  Links run() {
    try {
      while (num_open() > 0) {
        if (Clock::now() >= deadline_) throw Error(ErrorCategory::timeout, who_is_missing());
        listen_once();
      }
    } catch (const Error& error) {
      refuse_all(error);
      throw;
    }
    listener_.close();  // before anybody is let go, so that the next rendezvous finds the name free
    send_welcomes();
    return std::move(links_);
  }

 private:
  void open(const std::string& name) {
    while (true) {
      listener_ = Socket::listen_at(name, 4 * static_cast<int>(links_.pids.size()));
      if (listener_) return;
      if (Clock::now() >= deadline_) {
        throw Error(ErrorCategory::usage, "another job of this user holds the name of job \"" +
                                              me_.job + "\": give each job its own identity");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  [[nodiscard]] std::size_t num_open() const {
    std::size_t count = 0;
    for (std::size_t rank = 1; rank < links_.pids.size(); ++rank) {
      count += (links_.control[rank] ? 0u : 1u) + (links_.life[rank] ? 0u : 1u);
    }
    return count;
  }

  [[nodiscard]] std::string who_is_missing() const {
    std::string ranks;
    for (std::size_t rank = 1; rank < links_.pids.size(); ++rank) {
      if (links_.control[rank] && links_.life[rank]) continue;
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    std::string text = "rendezvous of job \"" + me_.job + "\": no word from rank " + ranks +
                       " of " + std::to_string(links_.pids.size()) + " within " +
                       seconds_text(timeout_ns_);
    if (num_strangers_ > 0) {
      text += "; " + std::to_string(num_strangers_) + " caller(s) of another user turned away";
    }
    return text + "; ranks must run on this machine, in one network namespace";
  }

  // Waits until something happens and deals with it.
  void listen_once() {
    std::vector<int> fds{listener_.fd()};
    for (const Socket& caller : callers_) fds.push_back(caller.fd());
    const auto ready = std::make_unique<bool[]>(fds.size());
    if (!wait_readable(fds.data(), ready.get(), fds.size(), deadline_)) return;
    std::vector<Socket> waiting;
    for (std::size_t i = 0; i < callers_.size(); ++i) {
      if (ready[i + 1]) {
        hear(std::move(callers_[i]));
      } else {
        waiting.push_back(std::move(callers_[i]));
      }
    }
    callers_ = std::move(waiting);
    if (ready[0]) admit();
  }

  void admit() {
    while (Socket caller = listener_.accept()) {
      if (caller.credentials().uid == geteuid()) {
        callers_.push_back(std::move(caller));
      } else {
        ++num_strangers_;
      }
    }
  }

  // A caller that talks nonsense is dropped; one that contradicts the job fails it for all.
  void hear(Socket caller) {
    Message message;
    Hello hello;
    if (caller.receive(message, Clock::now()) != ReceiveResult::message ||
        message.type != MessageType::hello || !unpack(message.payload, hello)) {
      return;
    }
    const std::string who = "rank " + std::to_string(hello.rank) + " (process " +
                            std::to_string(caller.credentials().pid) + ")";
    if (hello.job != me_.job || hello.group != me_.group) return;
    if (hello.num_ranks != me_.num_ranks || hello.rank < 1 || hello.rank >= me_.num_ranks) {
      refuse(caller,
             Error(ErrorCategory::usage, who + " speaks of " + std::to_string(hello.num_ranks) +
                                             " ranks, rank 0 of " + std::to_string(me_.num_ranks)));
    }
    if (hello.host != me_.host) {
      refuse(caller, Error(ErrorCategory::not_possible,
                           who + " runs on another machine: peer memory spans one machine"));
    }
    const auto rank = static_cast<std::size_t>(hello.rank);
    Socket& place = hello.line == Line::control ? links_.control[rank] : links_.life[rank];
    if (place) {
      refuse(caller, Error(ErrorCategory::usage, who + ": rank " + std::to_string(hello.rank) +
                                                     " is already taken by process " +
                                                     std::to_string(links_.pids[rank])));
    }
    links_.pids[rank] = caller.credentials().pid;
    place = std::move(caller);
  }

  [[noreturn]] static void refuse(const Socket& caller, const Error& error) {
    Message message;
    message.type = MessageType::fail;
    message.payload = pack_error(error);
    (void)caller.send(message, Clock::now());
    throw error;
  }

  void refuse_all(const Error& error) {
    Message message;
    message.type = MessageType::fail;
    message.payload = pack_error(error);
    for (const Socket& socket : links_.control) {
      if (socket) (void)socket.send(message, Clock::now());
    }
  }

  void send_welcomes() {
    Message message;
    message.type = MessageType::welcome;
    for (const pid_t pid : links_.pids) message.payload += std::to_string(pid) + '\n';
    for (std::size_t rank = 1; rank < links_.control.size(); ++rank) {
      (void)links_.control[rank].send(message, deadline_);  // a loss shows at the next call
    }
  }

  Hello me_;
  std::uint64_t timeout_ns_;
  Deadline deadline_;
  Socket listener_;
  std::vector<Socket> callers_;  // let in, not yet heard
  int num_strangers_ = 0;
  Links links_;
};

// Every other rank's side.
class Caller {
 public:
  Caller(const LaunchInfo& launch, const GroupOptions& options)
      : launch_(launch),
        options_(options),
        name_(socket_name(launch, options.name, geteuid())),
        deadline_(after_ns(options.timeout_ns)) {}

  Links run() {
    Links links;
    links.control.push_back(call(Line::control, nullptr));
    links.life.push_back(call(Line::life, &links.control.front()));
    wait_for_welcome(links);
    return links;
  }

 private:
  // With the control line open, rank 0 may have refused us before the second call comes through.
  Socket call(Line line, const Socket* control) {
    while (true) {
      if (control != nullptr) (void)answer_of(*control, Clock::now());
      Socket socket = Socket::connect_to(name_);
      if (socket) {
        const PeerCredentials other = socket.credentials();
        if (other.uid != geteuid()) {
          throw Error(ErrorCategory::runtime,
                      "the socket of job \"" + launch_.job + "\" is held by user " +
                          std::to_string(other.uid) + " (process " + std::to_string(other.pid) +
                          "): not ours, refused");
        }
        Message message;
        message.type = MessageType::hello;
        message.payload = pack(hello_of(launch_, options_, line));
        if (socket.send(message, deadline_)) return socket;
      }
      if (Clock::now() >= deadline_) {
        throw Error(ErrorCategory::timeout,
                    "rendezvous of job \"" + launch_.job + "\": no rank 0 within " +
                        seconds_text(options_.timeout_ns) +
                        "; ranks must run on one machine, in one network namespace");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // Throws what rank 0 says in place of a welcome; returns a welcome, or nothing so far.
  Message answer_of(const Socket& control, Deadline deadline) const {
    Message message;
    message.type = MessageType::hello;  // no answer yet
    const ReceiveResult result = control.receive(message, deadline);
    if (result == ReceiveResult::nothing) return message;
    if (result == ReceiveResult::message && message.type == MessageType::fail) {
      throw unpack_error(message.payload);
    }
    if (result == ReceiveResult::message && message.type == MessageType::welcome) return message;
    throw Error(ErrorCategory::timeout,
                "rendezvous of job \"" + launch_.job + "\": rank 0 hung up");
  }

  void wait_for_welcome(Links& links) const {
    // Rank 0 knows better who is missing; give its message a little longer.
    const Deadline deadline = deadline_ + std::chrono::seconds(1);
    const Message message = answer_of(links.control[0], deadline);
    if (message.type != MessageType::welcome) {
      throw Error(ErrorCategory::timeout, "rendezvous of job \"" + launch_.job +
                                              "\": no answer from rank 0 within " +
                                              seconds_text(options_.timeout_ns));
    }
    std::istringstream pids(message.payload);
    for (pid_t pid = 0; pids >> pid;) links.pids.push_back(pid);
    links.pids.resize(static_cast<std::size_t>(launch_.num_ranks), 0);
  }

  const LaunchInfo& launch_;
  const GroupOptions& options_;
  std::string name_;
  Deadline deadline_;
};

}  // namespace

std::string socket_name(const LaunchInfo& launch, const std::string& group_name, uid_t user) {
  // FNV-1a; a collision is caught by the job's full name in the hello.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : launch.job + '\n' + group_name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  char text[64];
  std::snprintf(text, sizeof text, "xstage.%u.%016llx", static_cast<unsigned>(user),
                static_cast<unsigned long long>(hash));
  return text;
}

Links rendezvous(const LaunchInfo& launch, const GroupOptions& options) {
  if (launch.num_ranks == 1) {
    Links alone;
    alone.pids = {getpid()};
    return alone;
  }
  if (launch.rank == 0) return Reception(launch, options).run();
  return Caller(launch, options).run();
}

std::string pack_error(const Error& error) {
  std::string text = std::to_string(error.exit_code()) + '\n' + error.what();
  return text.substr(0, kMaxPayload);
}

Error unpack_error(const std::string& payload) {
  const std::size_t end = payload.find('\n');
  int code = 0;
  if (end == std::string::npos || !parse_int(payload.substr(0, end), code) || code < 1 ||
      code > 6) {
    return Error(ErrorCategory::runtime, "a peer failed without saying why");
  }
  return Error(static_cast<ErrorCategory>(code), payload.substr(end + 1));
}

}  // namespace xstage::peers
