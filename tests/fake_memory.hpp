// Peer memory without a GPU: blocks are shared memory of the host, passed between processes as real
// descriptors. Counts what is alive and fails on demand.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "peers/memory_api.hpp"
#include "xstage/error.hpp"

namespace xstage::peers {

class FakeMemory final : public MemoryApi {
 public:
  // What may fail, by name: "require", "create", "export", "import", "page", "write".
  std::string fail_at;
  ErrorCategory fail_category = ErrorCategory::runtime;
  std::vector<std::string> uuids = {"gpu-a", "gpu-b", "gpu-c", "gpu-d"};  // by ordinal
  bool is_capturing = false;
  std::atomic<int> num_blocks{0};
  std::atomic<int> num_pages{0};
  std::atomic<int> num_calls{0};  // that touch the driver

  std::string uuid(int device) override { return uuids.at(static_cast<std::size_t>(device)); }
  void require(const BlockRequest& request) override {
    maybe_fail("require");
    if (request.device < 0 || static_cast<std::size_t>(request.device) >= uuids.size()) {
      throw Error(ErrorCategory::usage, "no such device");
    }
  }
  bool capturing(void*) override { return is_capturing; }
  std::unique_ptr<Block> create(const BlockRequest& request) override {
    ++num_calls;
    maybe_fail("create");
    return std::make_unique<FakeBlock>(*this, request, UniqueFd());
  }
  std::unique_ptr<Block> import(UniqueFd fd, const BlockRequest& request) override {
    ++num_calls;
    maybe_fail("import");
    return std::make_unique<FakeBlock>(*this, request, std::move(fd));
  }
  std::unique_ptr<Page> create_page(int) override {
    ++num_calls;
    maybe_fail("page");
    return std::make_unique<FakePage>(*this);
  }
  void write(int, std::byte* to, const void* from, std::size_t bytes) override {
    maybe_fail("write");
    std::memcpy(to, from, bytes);
  }
  void read(int, void* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void fill(int, std::byte* to, std::uint32_t word, std::size_t bytes) override {
    for (std::size_t i = 0; i + 4 <= bytes; i += 4) std::memcpy(to + i, &word, 4);
    if (word == 0) std::memset(to + bytes / 4 * 4, 0, bytes % 4);
  }

 private:
  class FakeBlock final : public Block {
   public:
    FakeBlock(FakeMemory& owner, const BlockRequest& request, UniqueFd imported)
        : owner_(owner), fd_(std::move(imported)) {
      bytes_ = (request.bytes + 4095) / 4096 * 4096;
      if (!fd_) {
        fd_.reset(::memfd_create("fake", MFD_CLOEXEC));
        if (::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) {
          throw Error(ErrorCategory::runtime, "ftruncate");
        }
      }
      memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
      if (memory_ == MAP_FAILED) throw Error(ErrorCategory::runtime, "mmap");
      ++owner_.num_blocks;
    }
    ~FakeBlock() override {
      ::munmap(memory_, bytes_);
      --owner_.num_blocks;
    }
    std::byte* address() const override { return static_cast<std::byte*>(memory_); }
    std::size_t bytes() const override { return bytes_; }
    UniqueFd export_fd() override {
      owner_.maybe_fail("export");
      return UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    }

   private:
    FakeMemory& owner_;
    UniqueFd fd_;
    std::size_t bytes_ = 0;
    void* memory_ = nullptr;
  };

  class FakePage final : public Page {
   public:
    explicit FakePage(FakeMemory& owner) : owner_(owner) { ++owner_.num_pages; }
    ~FakePage() override { --owner_.num_pages; }
    HostPage* host() const override { return page_.get(); }
    HostPage* device() const override { return page_.get(); }

   private:
    FakeMemory& owner_;
    std::unique_ptr<HostPage> page_ = std::make_unique<HostPage>();
  };

  void maybe_fail(const char* where) const {
    if (fail_at == where) throw Error(fail_category, std::string("made to fail at ") + where);
  }
};

}  // namespace xstage::peers
