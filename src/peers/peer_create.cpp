// PeerMemory across processes: agree, allocate, hand the descriptors round, map, agree again. Every
// step is tried by each rank on its own and then reported, so all ranks go on or all stop.
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "peers/group_impl.hpp"
#include "peers/peer_memory_impl.hpp"
#include "peers/rendezvous.hpp"
#include "xstage/error.hpp"

namespace xstage::peers {
namespace {

using Contribution = Group::Impl::Contribution;

// What a rank reports after a step: its facts, or why it failed.
struct Report {
  std::optional<Error> error;
  std::string facts;
};

std::string pack(const Report& report) {
  return report.error ? "error\n" + pack_error(*report.error) : "fine\n" + report.facts;
}

Report unpack(const std::string& payload) {
  if (payload.rfind("fine\n", 0) == 0) return {std::nullopt, payload.substr(5)};
  if (payload.rfind("error\n", 0) == 0) return {unpack_error(payload.substr(6)), ""};
  return {Error(ErrorCategory::runtime, "an unreadable report"), ""};
}

// Runs a step; errors become a report instead of leaving the others waiting.
Report attempt(const std::function<std::string()>& step) {
  try {
    return {std::nullopt, step()};
  } catch (const Error& error) {
    return {error, ""};
  } catch (const std::exception& error) {
    return {Error(ErrorCategory::runtime, error.what()), ""};
  }
}

// Collective. Throws the first failure in the order of ranks, the same everywhere.
std::vector<Contribution> agree(Group::Impl& group, const Report& mine, UniqueFd fd,
                                const std::string& what) {
  std::vector<Contribution> all = group.exchange(pack(mine), std::move(fd), what);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Report report = unpack(all[rank].payload);
    if (report.error) {
      throw Error(report.error->category(),
                  what + ": rank " + std::to_string(rank) + ": " + report.error->what());
    }
    all[rank].payload = std::move(report.facts);
  }
  return all;
}

// What must fit together before anybody allocates.
struct Facts {
  std::string uuid;
  std::size_t bytes = 0;
  int placement = 0;
};

std::string pack(const Facts& facts) {
  return facts.uuid + '\n' + std::to_string(facts.bytes) + '\n' + std::to_string(facts.placement);
}

Facts unpack_facts(const std::string& payload) {
  Facts facts;
  std::istringstream text(payload);
  std::getline(text, facts.uuid);
  text >> facts.bytes >> facts.placement;
  if (!text) throw Error(ErrorCategory::runtime, "create: unreadable facts of a peer");
  return facts;
}

// Pure: the same verdict on every rank.
std::vector<std::string> require_one_mind(const std::vector<Contribution>& all) {
  std::vector<std::string> uuids;
  const Facts first = unpack_facts(all.front().payload);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Facts facts = unpack_facts(all[rank].payload);
    if (facts.bytes != first.bytes || facts.placement != first.placement) {
      throw Error(ErrorCategory::usage,
                  "create: rank 0 asks for " + std::to_string(first.bytes) + " bytes, rank " +
                      std::to_string(rank) + " for " + std::to_string(facts.bytes) +
                      (facts.placement != first.placement ? " at another placement" : ""));
    }
    uuids.push_back(facts.uuid);
  }
  return uuids;
}

class Creation {
 public:
  Creation(std::shared_ptr<MemoryApi> api, std::shared_ptr<Group::Impl> group, std::size_t bytes,
           const PeerOptions& options)
      : group_(std::move(group)), impl_(std::make_unique<PeerMemory::Impl>(std::move(api))) {
    impl_->options = options;
    impl_->table.rank = group_->launch.rank;
    impl_->table.num_ranks = group_->launch.num_ranks;
    impl_->num_computing = group_->launch.num_ranks;
    impl_->user_bytes = bytes;
    request_.bytes = kControlBytes + bytes;
    request_.placement = options.placement;
    request_.device = options.device;
    request_.accessed_by = {options.device};
    request_.shareable = group_->launch.num_ranks > 1;
  }

  PeerMemory run() {
    agree_on_facts();
    map_all(allocate());
    impl_->watch(group_);
    return PeerMemory::Impl::wrap(std::move(impl_));
  }

 private:
  void agree_on_facts() {
    const Report mine = attempt([&] {
      require_legal_size(impl_->user_bytes);
      require_not_capturing(*impl_->api, impl_->options);
      impl_->api->require(request_);
      return pack(Facts{impl_->api->uuid(request_.device), impl_->user_bytes,
                        static_cast<int>(request_.placement)});
    });
    const auto all = agree(*group_, mine, {}, "peer memory");
    const CoLocation place =
        co_location(require_one_mind(all), static_cast<std::size_t>(impl_->table.rank));
    impl_->num_co_located = place.count;
    impl_->co_located_idx = place.idx;
  }

  std::vector<Contribution> allocate() {
    UniqueFd fd;
    const Report mine = attempt([&] {
      own_ = impl_->api->create(request_);
      impl_->overhead = own_->bytes() - impl_->user_bytes;
      impl_->page = impl_->api->create_page(request_.device);
      if (request_.shareable) fd = own_->export_fd();
      return std::string();
    });
    return agree(*group_, mine, std::move(fd), "allocating peer memory");
  }

  void map_all(std::vector<Contribution> all) {
    const Report mine = attempt([&] {
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const bool is_own = static_cast<int>(rank) == impl_->table.rank;
        if (!is_own && !all[rank].fd) {
          throw Error(ErrorCategory::runtime,
                      "no descriptor came from rank " + std::to_string(rank));
        }
        std::shared_ptr<Block> block =
            is_own ? own_ : impl_->api->import(std::move(all[rank].fd), request_);
        impl_->table.bases[rank] = block->address() + kControlBytes;
        impl_->blocks.push_back(std::move(block));
      }
      impl_->initialise_control(request_.bytes);
      return std::string();
    });
    (void)agree(*group_, mine, {}, "mapping peer memory");
  }

  std::shared_ptr<Group::Impl> group_;
  std::unique_ptr<PeerMemory::Impl> impl_;
  BlockRequest request_;
  std::shared_ptr<Block> own_;
};

}  // namespace

PeerMemory create(std::shared_ptr<MemoryApi> api, Group& group, std::size_t bytes,
                  const PeerOptions& options) {
  return Creation(std::move(api), group.impl(), bytes, options).run();
}

}  // namespace xstage::peers
