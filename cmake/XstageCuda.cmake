# CUDA for xstage: static runtime, driver entry points looked up at run time, SASS for the parts we
# support and PTX for later ones.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)  # set per target below
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

set(XSTAGE_GENCODE_PORTABLE -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90])
set(XSTAGE_GENCODE_HOPPER -gencode=arch=compute_90a,code=sm_90a)

# CMake 3.25 silently drops CMAKE_CUDA_STANDARD 20 with nvcc 13, so the standard is passed by hand.
function(xstage_configure_cuda target gencode)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF CUDA_STANDARD_REQUIRED OFF)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;${gencode};--expt-relaxed-constexpr;-lineinfo;-Xcompiler=-Wall>)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
