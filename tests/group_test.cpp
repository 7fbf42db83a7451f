// Rendezvous and collective calls among real processes, with friends, strangers and nonsense.
#include "xstage/group.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "peers/group_impl.hpp"
#include "peers/rendezvous.hpp"
#include "processes.hpp"
#include "xstage/error.hpp"

namespace xstage {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using testing_support::Child;
using testing_support::Outcome;
using testing_support::run_ranks;

constexpr std::uint64_t kSecond = 1'000'000'000;

// A job that no other test, in this process or beside it, shares.
std::string fresh_job() {
  static std::atomic<int> count{0};
  return "test " + std::to_string(getpid()) + " " + std::to_string(count++);
}

LaunchInfo launch_of(int rank, int num_ranks, const std::string& job) {
  LaunchInfo launch;
  launch.rank = launch.local_rank = rank;
  launch.num_ranks = launch.num_local_ranks = num_ranks;
  launch.job = job;
  return launch;
}

GroupOptions within(std::uint64_t timeout_ns) {
  GroupOptions options;
  options.timeout_ns = timeout_ns;
  return options;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += "[" + text + "]";
  return all;
}

std::size_t num_open_fds() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class GroupOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GroupOf, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(GroupOf, EverybodyHearsEverybodyInOrder) {
  const std::string job = fresh_job();
  std::string expected;
  for (int rank = 0; rank < GetParam(); ++rank) expected += "[from " + std::to_string(rank) + "]";
  const auto outcomes = run_ranks(GetParam(), [&](int rank) {
    Group group = Group::join(launch_of(rank, GetParam(), job), within(20 * kSecond));
    std::string text;
    for (int round = 0; round < 20; ++round) {
      text = joined(group.all_gather("from " + std::to_string(rank)));
      group.barrier();
    }
    return text;
  });
  EXPECT_THAT(outcomes,
              Each(AllOf(Field(&Outcome::exit_code, 0), Field(&Outcome::text, expected))));
}

TEST(Group, ABarrierHoldsUntilTheLastRankComes) {
  const std::string job = fresh_job();
  int shared[2];
  ASSERT_EQ(::pipe(shared), 0);
  const auto outcomes = run_ranks(3, [&](int rank) {
    Group group = Group::join(launch_of(rank, 3, job), within(20 * kSecond));
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      (void)!::write(shared[1], "x", 1);
    }
    group.barrier();
    // Whoever is through must find the byte that the last one wrote before it came.
    (void)::fcntl(shared[0], F_SETFL, O_NONBLOCK);
    char byte = 0;
    const ssize_t got = ::read(shared[0], &byte, 1);
    if (got == 1) (void)!::write(shared[1], "x", 1);
    group.barrier();
    return std::string(got >= 0 ? "after" : "before");
  });
  // Ranks may race for the byte, but none can pass before it exists: at least one sees it.
  int num_after = 0;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    num_after += outcome.text == "after" ? 1 : 0;
  }
  EXPECT_GE(num_after, 1);
  ::close(shared[0]);
  ::close(shared[1]);
}

TEST(Group, MissingRanksAreNamed) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(2, [&](int rank) {
    (void)Group::join(launch_of(rank, 4, job), within(kSecond / 2));
    return std::string("joined");
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 5);
    EXPECT_THAT(outcome.text, HasSubstr("no word from rank 2, 3 of 4"));
  }
}

TEST(Group, WithoutRankZeroTheOthersSaySo) {
  try {
    (void)Group::join(launch_of(1, 2, fresh_job()), within(kSecond / 5));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::timeout);
    EXPECT_THAT(error.what(), HasSubstr("no rank 0"));
  }
}

TEST(Group, TwoProcessesOfOneRankAreRefusedEverywhere) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(3, [&](int process) {
    (void)Group::join(launch_of(process == 2 ? 1 : process, 3, job), within(5 * kSecond));
    return std::string("joined");
  });
  EXPECT_EQ(outcomes[0].exit_code, 2);
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 1 is already taken"));
  EXPECT_NE(outcomes[1].exit_code, 0);
  EXPECT_NE(outcomes[2].exit_code, 0);
}

TEST(Group, DisagreementAboutTheSizeIsRefused) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(2, [&](int rank) {
    (void)Group::join(launch_of(rank, rank == 0 ? 2 : 3, job), within(5 * kSecond));
    return std::string("joined");
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.text, HasSubstr("speaks of 3 ranks, rank 0 of 2"));
  }
}

TEST(Group, TwoJobsOnOneMachineDoNotMix) {
  const std::string jobs[2] = {fresh_job(), fresh_job()};
  const auto outcomes = run_ranks(6, [&](int process) {
    Group group = Group::join(launch_of(process / 2, 3, jobs[process % 2]), within(20 * kSecond));
    return joined(group.all_gather("job " + std::to_string(process % 2)));
  });
  for (int process = 0; process < 6; ++process) {
    const std::string own = "[job " + std::to_string(process % 2) + "]";
    EXPECT_EQ(outcomes[static_cast<std::size_t>(process)].text, own + own + own);
  }
}

TEST(Group, GroupsOfOneJobAreToldApartByName) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(2, [&](int rank) {
    GroupOptions first = within(20 * kSecond);
    first.name = "first";
    GroupOptions second = within(20 * kSecond);
    second.name = "second";
    Group a = Group::join(launch_of(rank, 2, job), first);
    Group b = Group::join(launch_of(rank, 2, job), second);
    return joined(b.all_gather("b")) + joined(a.all_gather("a"));
  });
  EXPECT_THAT(outcomes, Each(Field(&Outcome::text, "[b][b][a][a]")));
}

TEST(Group, ANameLeftByADeadJobIsFree) {
  const std::string job = fresh_job();
  const Child dead = testing_support::start([&]() -> std::string {
    const auto socket =
        peers::Socket::listen_at(peers::socket_name(launch_of(0, 2, job), "", geteuid()), 4);
    ::kill(::getpid(), SIGKILL);
    return socket ? "" : "";
  });
  (void)testing_support::finish(dead);
  const auto outcomes = run_ranks(2, [&](int rank) {
    Group group = Group::join(launch_of(rank, 2, job), within(5 * kSecond));
    group.barrier();
    return std::string("joined");
  });
  EXPECT_THAT(outcomes, Each(Field(&Outcome::exit_code, 0)));
}

TEST(Group, ANameHeldByALiveJobIsSaid) {
  const std::string job = fresh_job();
  const auto held =
      peers::Socket::listen_at(peers::socket_name(launch_of(0, 2, job), "", geteuid()), 4);
  ASSERT_TRUE(held);
  try {
    (void)Group::join(launch_of(0, 2, job), within(kSecond / 5));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    EXPECT_THAT(error.what(), HasSubstr("another job"));
  }
}

TEST(Group, ManyRendezvousInARowLeakNothing) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(2, [&](int rank) {
    std::size_t after_first = 0;
    for (int i = 0; i < 200; ++i) {
      Group group = Group::join(launch_of(rank, 2, job), within(20 * kSecond));
      group.barrier();
      group.leave();
      group.leave();
      if (i == 0) after_first = num_open_fds();
    }
    return std::to_string(static_cast<long>(num_open_fds()) - static_cast<long>(after_first));
  });
  EXPECT_THAT(outcomes, Each(Field(&Outcome::text, "0")));
}

// Connects to the name of a job and hands the raw socket to `act`.
void call_raw(const std::string& name, const std::function<void(int)>& act) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) {
      act(fd);
      ::close(fd);
      return;
    }
    ::close(fd);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(Group, NonsenseFromACallerIsDroppedAndTheRestMeet) {
  const std::string job = fresh_job();
  const std::string name = peers::socket_name(launch_of(0, 2, job), "", geteuid());
  const auto outcomes = run_ranks(3, [&](int process) {
    if (process < 2) {
      if (process == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      Group group = Group::join(launch_of(process, 2, job), within(10 * kSecond));
      return joined(group.all_gather("fine"));
    }
    call_raw(name, [](int) {});  // says nothing and hangs up
    call_raw(name, [](int fd) { (void)!::send(fd, "", 0, MSG_NOSIGNAL); });
    call_raw(name, [](int fd) { (void)!::send(fd, "GET / HTTP/1.1", 14, MSG_NOSIGNAL); });
    call_raw(name, [](int fd) {
      const std::string big(100 * 1024, 'x');
      (void)!::send(fd, big.data(), big.size(), MSG_NOSIGNAL);
    });
    call_raw(name, [](int fd) {  // a right header that promises more than comes
      const std::uint32_t header[6] = {0x58535447, 1u | (1u << 16), 0, 0, 0xffffffff, 0};
      (void)!::send(fd, header, sizeof header, MSG_NOSIGNAL);
    });
    call_raw(name, [](int fd) {  // a hello with a wild payload
      std::uint32_t header[6] = {0x58535447, 1u | (1u << 16), 0, 0, 0, 0};
      const std::string payload = "control\n99999999999999\n-3\n\n\n";
      header[4] = static_cast<std::uint32_t>(payload.size());
      std::string bytes(reinterpret_cast<const char*>(header), sizeof header);
      bytes += payload;
      (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    });
    return std::string("done");
  });
  EXPECT_EQ(outcomes[0].text, "[fine][fine]") << outcomes[0].text;
  EXPECT_EQ(outcomes[1].text, "[fine][fine]") << outcomes[1].text;
}

TEST(Socket, SurplusDescriptorsAreRefusedAndClosed) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const peers::Socket receiver{peers::UniqueFd(ends[0])};
  const peers::UniqueFd sender{ends[1]};
  const std::size_t before = num_open_fds();
  const std::uint32_t header[6] = {0x58535447, 1u | (3u << 16), 0, 0, 0, 0};
  for (const int num_descriptors : {1, 2, 4, 9}) {
    iovec part{const_cast<std::uint32_t*>(header), sizeof header};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * static_cast<std::size_t>(num_descriptors)));
    msghdr envelope{};
    envelope.msg_iov = &part;
    envelope.msg_iovlen = 1;
    envelope.msg_control = control.data();
    envelope.msg_controllen = control.size();
    cmsghdr* entry = CMSG_FIRSTHDR(&envelope);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(sizeof(int) * static_cast<std::size_t>(num_descriptors));
    for (int i = 0; i < num_descriptors; ++i) {
      const int fd = STDIN_FILENO;
      std::memcpy(CMSG_DATA(entry) + i * static_cast<int>(sizeof fd), &fd, sizeof fd);
    }
    ASSERT_GT(::sendmsg(sender.get(), &envelope, 0), 0);
    peers::Message message;
    const auto result = receiver.receive(message, peers::after_ns(kSecond));
    EXPECT_EQ(result, num_descriptors == 1 ? peers::ReceiveResult::message
                                           : peers::ReceiveResult::nonsense);
    EXPECT_EQ(static_cast<bool>(message.fd), num_descriptors == 1);
  }
  EXPECT_EQ(num_open_fds(), before);
}

TEST(Group, AStrangerOfAnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  const std::string job = fresh_job();
  const std::string name = peers::socket_name(launch_of(0, 2, job), "", 0);
  const auto outcomes = run_ranks(3, [&](int process) {
    if (process == 2) {  // speaks the protocol well, and claims rank 1
      if (::setuid(65534) != 0) return std::string("cannot become nobody");
      std::string answer = "turned away";
      call_raw(name, [&](int fd) {
        std::uint32_t header[6] = {0x58535447, 1u | (1u << 16), 0, 0, 0, 0};
        const std::string payload = "control\n1\n2\nhost\n\n" + job;
        header[4] = static_cast<std::uint32_t>(payload.size());
        std::string bytes(reinterpret_cast<const char*>(header), sizeof header);
        bytes += payload;
        (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        char byte = 0;
        if (::recv(fd, &byte, 1, 0) > 0) answer = "let in";
      });
      return answer;
    }
    if (process == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    Group group = Group::join(launch_of(process, 2, job), within(10 * kSecond));
    return joined(group.all_gather("fine"));
  });
  EXPECT_EQ(outcomes[0].text, "[fine][fine]");
  EXPECT_EQ(outcomes[1].text, "[fine][fine]");
  EXPECT_EQ(outcomes[2].text, "turned away");
}

TEST(Group, ARoomHeldByAnotherUserIsNotEntered) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  const std::string job = fresh_job();
  const std::string name = peers::socket_name(launch_of(0, 2, job), "", 0);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const Child squatter = testing_support::start([&] {
    if (::setuid(65534) != 0) return std::string("cannot become nobody");
    const auto socket = peers::Socket::listen_at(name, 4);
    (void)!::write(ready[1], "x", 1);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return std::string(socket ? "held" : "not held");
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  try {
    (void)Group::join(launch_of(1, 2, job), within(5 * kSecond));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::runtime);
    EXPECT_THAT(error.what(), HasSubstr("user 65534"));
  }
  EXPECT_EQ(testing_support::finish(squatter).text, "held");
}

TEST(Group, DifferentCallsInTheSameOrderAreAnErrorNotAHang) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(2, [&](int rank) {
    Group group = Group::join(launch_of(rank, 2, job), within(kSecond / 2));
    if (rank == 0) group.barrier();  // rank 1 makes one call fewer and stays
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    return std::string("through");
  });
  EXPECT_EQ(outcomes[0].exit_code, 5);
  EXPECT_THAT(outcomes[0].text, HasSubstr("no word from rank 1"));
}

TEST(Group, AContributionThatIsTooLargeIsRefused) {
  Group group = Group::join(launch_of(0, 1, fresh_job()));
  try {
    (void)group.all_gather(std::string(peers::kMaxPayload + 1, 'x'));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
  }
}

TEST(Group, AfterLeavingCallsAreErrors) {
  Group group = Group::join(launch_of(0, 1, fresh_job()));
  group.leave();
  EXPECT_THROW(group.barrier(), Error);
  EXPECT_EQ(group.lost(), "");
}

// Waits until the group has noticed, within the second that is promised.
std::string loss_of(const Group& group) {
  for (int i = 0; i < 1000 && group.lost().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return group.lost();
}

class KilledRank : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Victims, KilledRank, ::testing::Values(0, 1, 3));

TEST_P(KilledRank, EveryOtherRankHearsOfIt) {
  const std::string job = fresh_job();
  const int victim = GetParam();
  const auto outcomes = run_ranks(4, [&](int rank) {
    Group group = Group::join(launch_of(rank, 4, job), within(20 * kSecond));
    group.barrier();
    if (rank == victim) ::kill(::getpid(), SIGKILL);
    const std::string loss = loss_of(group);
    if (loss.empty()) throw Error(ErrorCategory::check_failed, "nothing noticed");
    group.barrier();  // must throw
    return std::string("through");
  });
  for (int rank = 0; rank < 4; ++rank) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    if (rank == victim) {
      EXPECT_EQ(outcome.exit_code, -1);
      continue;
    }
    EXPECT_EQ(outcome.exit_code, 5) << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("rank " + std::to_string(victim) + " was lost"));
  }
}

TEST(Group, ARankLostInACollectiveCallEndsTheCall) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(3, [&](int rank) {
    Group group = Group::join(launch_of(rank, 3, job), within(20 * kSecond));
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ::kill(::getpid(), SIGKILL);
    }
    group.barrier();
    return std::string("through");
  });
  EXPECT_EQ(outcomes[0].exit_code, 5) << outcomes[0].text;
  EXPECT_EQ(outcomes[1].exit_code, 5) << outcomes[1].text;
  EXPECT_THAT(outcomes[1].text, HasSubstr("rank 2"));
}

TEST(Group, LeavingIsNoLoss) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(3, [&](int rank) {
    Group group = Group::join(launch_of(rank, 3, job), within(20 * kSecond));
    group.barrier();
    if (rank == 1) return std::string("left");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return "lost: " + group.lost();
  });
  EXPECT_EQ(outcomes[0].text, "lost: ");
  EXPECT_EQ(outcomes[2].text, "lost: ");
}

TEST(Group, AStoppedRankIsSlowNotLost) {
  const std::string job = fresh_job();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  std::vector<Child> children;
  for (int rank = 0; rank < 2; ++rank) {
    children.push_back(testing_support::start([&, rank] {
      Group group = Group::join(launch_of(rank, 2, job), within(20 * kSecond));
      group.barrier();
      if (rank == 1) (void)!::write(ready[1], "x", 1);
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group.barrier();
      return "lost: " + group.lost();
    }));
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(children[1].pid, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(children[1].pid, SIGCONT);
  EXPECT_EQ(testing_support::finish(children[0]).text, "lost: ");
  EXPECT_EQ(testing_support::finish(children[1]).text, "lost: ");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(Group, AbortReachesEveryRank) {
  const std::string job = fresh_job();
  const auto outcomes = run_ranks(4, [&](int rank) {
    Group group = Group::join(launch_of(rank, 4, job), within(20 * kSecond));
    group.barrier();
    if (rank == 3) group.abort("rank 3 found a wrong byte");
    const std::string reason = loss_of(group);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return reason;
  });
  EXPECT_THAT(outcomes, Each(Field(&Outcome::text, "rank 3 found a wrong byte")));
}

TEST(Group, ErrorsSurviveTheWire) {
  const Error error =
      peers::unpack_error(peers::pack_error(Error(ErrorCategory::not_possible, "two\nlines")));
  EXPECT_EQ(error.category(), ErrorCategory::not_possible);
  EXPECT_STREQ(error.what(), "two\nlines");
  for (const char* nonsense : {"", "x", "9\ntext", "-1\ntext", "3"}) {
    EXPECT_EQ(peers::unpack_error(nonsense).category(), ErrorCategory::runtime) << nonsense;
  }
}

}  // namespace
}  // namespace xstage
