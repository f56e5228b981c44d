# The device for GPUs and its kernels, which nvcc compiles.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)  # machine code for these, and PTX that newer ones translate
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

target_sources(dtensor PRIVATE ${DTENSOR_CUDA_SOURCES})
target_compile_definitions(dtensor PRIVATE DTENSOR_HAS_CUDA)
# As Bazel does it: tools/cuda/cuda_library.bzl.
target_compile_options(
  dtensor PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-fmad=false>")
set_target_properties(dtensor PROPERTIES CUDA_RUNTIME_LIBRARY Shared)
target_link_libraries(dtensor PRIVATE CUDA::cudart CUDA::cublasLt)
# Attention by cuDNN where it is there.
find_path(DTENSOR_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(DTENSOR_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
if(DTENSOR_CUDNN_INCLUDE AND DTENSOR_CUDNN_LIBRARY)
  target_sources(dtensor PRIVATE ${DTENSOR_CUDNN_SOURCES})
  target_include_directories(dtensor PRIVATE ${DTENSOR_CUDNN_INCLUDE})
  target_link_libraries(dtensor PRIVATE ${DTENSOR_CUDNN_LIBRARY})
else()
  target_sources(dtensor PRIVATE ${DTENSOR_NO_CUDNN_SOURCES})
endif()
message(STATUS "dtensor: cuDNN ${DTENSOR_CUDNN_LIBRARY}")
# Ranks on GPUs of several processes need NCCL; without it they are refused, and all else is there.
find_path(DTENSOR_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(DTENSOR_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
if(DTENSOR_NCCL_INCLUDE AND DTENSOR_NCCL_LIBRARY)
  target_sources(dtensor PRIVATE ${DTENSOR_NCCL_SOURCES})
  target_include_directories(dtensor PRIVATE ${DTENSOR_NCCL_INCLUDE})
  target_link_libraries(dtensor PRIVATE ${DTENSOR_NCCL_LIBRARY})
else()
  target_sources(dtensor PRIVATE ${DTENSOR_NO_NCCL_SOURCES})
endif()
message(STATUS "dtensor: NCCL ${DTENSOR_NCCL_LIBRARY}")
# What sources of kernels include (dtensor/tools/cuda/kernel-inl.h).
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/tools ${PROJECT_BINARY_DIR}/include/dtensor/tools SYMBOLIC)
