# The device for GPUs and its kernels, which nvcc compiles.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90)  # machine code for these, and PTX that newer ones translate
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# As Bazel does it: tools/cuda/cuda_library.bzl.
set(kernel_options "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-fmad=false>")
# Those with instructions of sm_90a (sm_90a_srcs in runtime/kernels/cuda) are compiled for it in place of sm_90.
set(sm_90a_sources ${DTENSOR_CUDA_SOURCES})
list(FILTER sm_90a_sources INCLUDE REGEX "/attention_flash(_grad)?\\.cu$")
if("90" IN_LIST CMAKE_CUDA_ARCHITECTURES)
  set(architectures ${CMAKE_CUDA_ARCHITECTURES} 90a-real 90-virtual)
  list(REMOVE_ITEM architectures 90)
  add_library(dtensor_sm_90a OBJECT ${sm_90a_sources})
  set_target_properties(dtensor_sm_90a PROPERTIES CUDA_ARCHITECTURES "${architectures}"
                                                  POSITION_INDEPENDENT_CODE ON)
  target_compile_options(dtensor_sm_90a PRIVATE ${kernel_options})
  target_compile_definitions(dtensor_sm_90a PRIVATE DTENSOR_SM_90A
                             $<TARGET_PROPERTY:dtensor,COMPILE_DEFINITIONS>)
  target_include_directories(dtensor_sm_90a PRIVATE $<TARGET_PROPERTY:dtensor,INCLUDE_DIRECTORIES>)
  target_sources(dtensor PRIVATE $<TARGET_OBJECTS:dtensor_sm_90a>)
  list(REMOVE_ITEM DTENSOR_CUDA_SOURCES ${sm_90a_sources})
endif()
target_sources(dtensor PRIVATE ${DTENSOR_CUDA_SOURCES})
target_compile_definitions(dtensor PRIVATE DTENSOR_HAS_CUDA)
target_compile_options(dtensor PRIVATE ${kernel_options})
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
