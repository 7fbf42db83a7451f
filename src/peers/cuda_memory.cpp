// CUDA behind the memory seam: virtual memory management for device blocks, shared memory pinned by
// CUDA for host blocks. Driver entry points are looked up at run time; nothing links to the driver.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "peers/cuda_check.hpp"
#include "peers/memory_api.hpp"
#include "xstage/error.hpp"

namespace xstage::peers {
namespace {

// The driver functions that we use, at the oldest version that has what we need.
struct Driver {
  PFN_cuGetErrorString_v6000 error_string;
  PFN_cuDeviceGetAttribute_v2000 attribute;
  PFN_cuMemGetAllocationGranularity_v10020 granularity;
  PFN_cuMemCreate_v10020 create;
  PFN_cuMemRelease_v10020 release;
  PFN_cuMemExportToShareableHandle_v10020 export_handle;
  PFN_cuMemImportFromShareableHandle_v10020 import_handle;
  PFN_cuMemAddressReserve_v10020 reserve;
  PFN_cuMemAddressFree_v10020 free_address;
  PFN_cuMemMap_v10020 map;
  PFN_cuMemUnmap_v10020 unmap;
  PFN_cuMemSetAccess_v10020 set_access;
  PFN_cuMemsetD32Async_v3020 fill;

  static Driver load() {
    Driver driver{};
    look_up(driver.error_string, "cuGetErrorString", 6000);
    look_up(driver.attribute, "cuDeviceGetAttribute", 2000);
    look_up(driver.granularity, "cuMemGetAllocationGranularity", 10020);
    look_up(driver.create, "cuMemCreate", 10020);
    look_up(driver.release, "cuMemRelease", 10020);
    look_up(driver.export_handle, "cuMemExportToShareableHandle", 10020);
    look_up(driver.import_handle, "cuMemImportFromShareableHandle", 10020);
    look_up(driver.reserve, "cuMemAddressReserve", 10020);
    look_up(driver.free_address, "cuMemAddressFree", 10020);
    look_up(driver.map, "cuMemMap", 10020);
    look_up(driver.unmap, "cuMemUnmap", 10020);
    look_up(driver.set_access, "cuMemSetAccess", 10020);
    look_up(driver.fill, "cuMemsetD32Async", 3020);
    return driver;
  }

  void check(CUresult result, const std::string& what) const {
    if (result == CUDA_SUCCESS) return;
    const char* text = nullptr;
    if (error_string(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
    std::string message = what + ": " + text + " (" + std::to_string(result) + ")";
    const bool refused = result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED;
    if (result == CUDA_ERROR_NOT_PERMITTED)
      message += "; is this container allowed to share GPU memory?";
    if (result == CUDA_ERROR_SYSTEM_NOT_READY) message += "; is the fabric manager running?";
    throw Error(refused ? ErrorCategory::not_possible : ErrorCategory::runtime, message);
  }

 private:
  template <typename Function>
  static void look_up(Function& function, const char* name, unsigned version) {
    function = driver_entry<Function>(name, version);
  }
};

std::string gpu_name(int device) {
  return "GPU " + std::to_string(device);
}

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Waits for what runs on a device; errors are left for whoever launched it.
void settle(const std::vector<int>& devices) noexcept {
  int before = 0;
  (void)cudaGetDevice(&before);
  for (const int device : devices) {
    (void)cudaSetDevice(device);
    (void)cudaDeviceSynchronize();
  }
  (void)cudaSetDevice(before);
}

CUmemAllocationProp device_property(int device, bool shareable) {
  CUmemAllocationProp property{};
  property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  property.location.id = device;
  property.requestedHandleTypes =
      shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  return property;
}

// Device memory through CUDA virtual memory management.
class DeviceBlock final : public Block {
 public:
  DeviceBlock(const Driver& driver, const BlockRequest& request, UniqueFd imported)
      : driver_(driver), request_(request) {
    const DeviceScope scope(request.device);
    check_cuda(cudaFree(nullptr), "initialising " + gpu_name(request.device));
    const CUmemAllocationProp property = device_property(request.device, request.shareable);
    std::size_t unit = 0;
    driver_.check(driver_.granularity(&unit, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                  "cuMemGetAllocationGranularity on " + gpu_name(request.device));
    bytes_ = round_up(request.bytes, unit);
    try {
      obtain(property, std::move(imported));
      map(unit);
    } catch (...) {
      release();
      throw;
    }
  }
  ~DeviceBlock() override {
    settle(request_.accessed_by);
    release();
  }

  [[nodiscard]] std::byte* address() const override {
    return reinterpret_cast<std::byte*>(address_);
  }
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }
  [[nodiscard]] UniqueFd export_fd() override {
    int fd = -1;
    driver_.check(driver_.export_handle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                  "cuMemExportToShareableHandle on " + gpu_name(request_.device));
    (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
    return UniqueFd(fd);
  }

 private:
  void obtain(const CUmemAllocationProp& property, UniqueFd imported) {
    if (imported) {
      void* os_handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(imported.get()));
      driver_.check(
          driver_.import_handle(&handle_, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle for " + gpu_name(request_.device));
    } else {
      driver_.check(
          driver_.create(&handle_, bytes_, &property, 0),
          "cuMemCreate of " + std::to_string(bytes_) + " bytes on " + gpu_name(request_.device));
    }
    has_handle_ = true;
  }

  void map(std::size_t unit) {
    driver_.check(driver_.reserve(&address_, bytes_, unit, 0, 0), "cuMemAddressReserve");
    driver_.check(driver_.map(address_, bytes_, 0, handle_, 0), "cuMemMap");
    is_mapped_ = true;
    for (const int device : request_.accessed_by) {
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = device;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      driver_.check(
          driver_.set_access(address_, bytes_, &access, 1),
          "cuMemSetAccess for " + gpu_name(device) + " (no peer access between the two GPUs?)");
    }
  }

  void release() noexcept {
    if (is_mapped_) (void)driver_.unmap(address_, bytes_);
    if (address_ != 0) (void)driver_.free_address(address_, bytes_);
    if (has_handle_) (void)driver_.release(handle_);
  }

  const Driver driver_;
  BlockRequest request_;
  std::size_t bytes_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  bool has_handle_ = false;
  CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
};

// Shared memory of the host, pinned and mapped by CUDA. The same mechanism in one process and in
// several, so that both run at the same speed.
class HostBlock final : public Block {
 public:
  HostBlock(const BlockRequest& request, UniqueFd imported)
      : request_(request), fd_(std::move(imported)) {
    const DeviceScope scope(request.device);
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    bytes_ = round_up(request.bytes, page);
    if (fd_) {
      require_size();
    } else {
      fd_.reset(::memfd_create("xstage", MFD_CLOEXEC));
      if (!fd_ || ::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) {
        throw Error(ErrorCategory::runtime, std::string("memfd_create: ") + std::strerror(errno));
      }
    }
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    if (memory_ == MAP_FAILED) {
      throw Error(ErrorCategory::runtime, std::string("mmap: ") + std::strerror(errno));
    }
    const cudaError_t pinned =
        cudaHostRegister(memory_, bytes_, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (pinned != cudaSuccess) {
      (void)::munmap(memory_, bytes_);
      check_cuda(pinned, "cudaHostRegister of " + std::to_string(bytes_) + " bytes");
    }
    const cudaError_t mapped = cudaHostGetDevicePointer(&device_memory_, memory_, 0);
    if (mapped != cudaSuccess) {
      release();
      check_cuda(mapped, "cudaHostGetDevicePointer");
    }
  }
  ~HostBlock() override {
    settle(request_.accessed_by);
    release();
  }

  [[nodiscard]] std::byte* address() const override {
    return static_cast<std::byte*>(device_memory_);
  }
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }
  [[nodiscard]] UniqueFd export_fd() override {
    UniqueFd copy(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy) throw Error(ErrorCategory::runtime, "out of file descriptors");
    return copy;
  }

 private:
  // A peer's file must really hold what it promised, or touching it would kill this process.
  void require_size() const {
    struct stat facts {};
    if (::fstat(fd_.get(), &facts) != 0 || facts.st_size < static_cast<off_t>(bytes_)) {
      throw Error(ErrorCategory::runtime, "a peer's shared memory is smaller than agreed");
    }
  }
  void release() noexcept {
    (void)cudaHostUnregister(memory_);
    (void)cudaGetLastError();
    (void)::munmap(memory_, bytes_);
  }

  BlockRequest request_;
  UniqueFd fd_;
  std::size_t bytes_ = 0;
  void* memory_ = nullptr;
  void* device_memory_ = nullptr;
};

class PinnedPage final : public Page {
 public:
  explicit PinnedPage(int device) {
    const DeviceScope scope(device);
    void* memory = nullptr;
    check_cuda(
        cudaHostAlloc(&memory, sizeof(HostPage), cudaHostAllocMapped | cudaHostAllocPortable),
        "cudaHostAlloc");
    host_ = new (memory) HostPage{};
    void* mapped = nullptr;
    const cudaError_t status = cudaHostGetDevicePointer(&mapped, memory, 0);
    if (status != cudaSuccess) {
      (void)cudaFreeHost(memory);
      check_cuda(status, "cudaHostGetDevicePointer");
    }
    device_ = static_cast<HostPage*>(mapped);
  }
  ~PinnedPage() override { (void)cudaFreeHost(host_); }

  [[nodiscard]] HostPage* host() const override { return host_; }
  [[nodiscard]] HostPage* device() const override { return device_; }

 private:
  HostPage* host_ = nullptr;
  HostPage* device_ = nullptr;
};

// A stream of our own, so that set-up neither waits for running kernels nor holds them up.
class SetupStream {
 public:
  explicit SetupStream(int device) : scope_(device) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~SetupStream() { (void)cudaStreamDestroy(stream_); }
  SetupStream(const SetupStream&) = delete;
  SetupStream& operator=(const SetupStream&) = delete;

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  void finish() { check_cuda(cudaStreamSynchronize(stream_), "setting up peer memory"); }

 private:
  DeviceScope scope_;
  cudaStream_t stream_ = nullptr;
};

class CudaMemory final : public MemoryApi {
 public:
  CudaMemory() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0) {
      (void)cudaGetLastError();
      throw Error(ErrorCategory::not_possible,
                  std::string("no GPU: ") +
                      (status == cudaSuccess ? "none visible" : cudaGetErrorString(status)));
    }
    num_devices_ = count;
    driver_ = Driver::load();
  }

  [[nodiscard]] std::string uuid(int device) override {
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    std::string text;
    for (const char byte : properties.uuid.bytes) {
      constexpr const char* kDigits = "0123456789abcdef";
      text += kDigits[(static_cast<unsigned char>(byte) >> 4) & 15];
      text += kDigits[static_cast<unsigned char>(byte) & 15];
    }
    return text;
  }

  void require(const BlockRequest& request) override {
    if (request.device < 0 || request.device >= num_devices_) {
      throw Error(ErrorCategory::usage,
                  gpu_name(request.device) + ": legal 0.." + std::to_string(num_devices_ - 1));
    }
    for (const int accessor : request.accessed_by) require_access(accessor, request.device);
    if (request.placement == Placement::host) return;
    require_flag(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, request.device,
                 "no CUDA virtual memory management");
    if (request.shareable) {
      require_flag(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, request.device,
                   "memory cannot be given to other processes as a file descriptor; run all ranks "
                   "in one process");
    }
  }

  [[nodiscard]] bool capturing(void* stream) override {
    for (const cudaStream_t each : {static_cast<cudaStream_t>(stream), cudaStreamLegacy}) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      const cudaError_t result = cudaStreamIsCapturing(each, &status);
      (void)cudaGetLastError();
      if (result == cudaErrorStreamCaptureImplicit || status != cudaStreamCaptureStatusNone) {
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] std::unique_ptr<Block> create(const BlockRequest& request) override {
    return make(request, {});
  }
  [[nodiscard]] std::unique_ptr<Block> import(UniqueFd fd, const BlockRequest& request) override {
    return make(request, std::move(fd));
  }
  [[nodiscard]] std::unique_ptr<Page> create_page(int device) override {
    return std::make_unique<PinnedPage>(device);
  }

  void write(int device, std::byte* to, const void* from, std::size_t bytes) override {
    SetupStream stream(device);
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpy");
    stream.finish();
  }
  void read(int device, void* to, const std::byte* from, std::size_t bytes) override {
    SetupStream stream(device);
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpy");
    stream.finish();
  }
  void fill(int device, std::byte* to, std::uint32_t word, std::size_t bytes) override {
    SetupStream stream(device);
    const std::size_t num_words = bytes / sizeof word;
    if (num_words > 0) {
      driver_.check(driver_.fill(reinterpret_cast<CUdeviceptr>(to), word, num_words, stream.get()),
                    "cuMemsetD32");
    }
    if (word == 0 && bytes % sizeof word != 0) {
      check_cuda(
          cudaMemsetAsync(to + num_words * sizeof word, 0, bytes % sizeof word, stream.get()),
          "cudaMemset");
    }
    stream.finish();
  }

 private:
  [[nodiscard]] std::unique_ptr<Block> make(const BlockRequest& request, UniqueFd fd) {
    if (request.placement == Placement::host) {
      return std::make_unique<HostBlock>(request, std::move(fd));
    }
    return std::make_unique<DeviceBlock>(driver_, request, std::move(fd));
  }

  void require_access(int from, int to) const {
    if (from == to) return;
    if (from < 0 || from >= num_devices_) {
      throw Error(ErrorCategory::usage,
                  gpu_name(from) + ": legal 0.." + std::to_string(num_devices_ - 1));
    }
    int access = 0;
    check_cuda(cudaDeviceCanAccessPeer(&access, from, to), "cudaDeviceCanAccessPeer");
    if (access != 0) return;
    throw Error(ErrorCategory::not_possible, gpu_name(from) + " cannot access the memory of " +
                                                 gpu_name(to) + " (cudaDeviceCanAccessPeer)");
  }

  void require_flag(CUdevice_attribute attribute, int device, const char* lack) const {
    int value = 0;
    driver_.check(driver_.attribute(&value, attribute, device), "cuDeviceGetAttribute");
    if (value != 0) return;
    throw Error(ErrorCategory::not_possible, gpu_name(device) + ": " + lack);
  }

  int num_devices_ = 0;
  Driver driver_{};
};

}  // namespace

std::shared_ptr<MemoryApi> cuda_memory() {
  return std::make_shared<CudaMemory>();
}

}  // namespace xstage::peers
