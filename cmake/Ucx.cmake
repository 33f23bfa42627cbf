# UCX: Debian's, or the PyPI wheel libucx-cu13, which reaches GPU memory. A build that insists on CUDA takes the wheel
# where deploy/install_packages.sh has put it; the code is the same with both and says at start which it found.
set(SLUICE_UCX_WHEEL ${CMAKE_SOURCE_DIR}/build/ucx/libucx CACHE PATH "the wheel's folder libucx")
if(SLUICE_CUDA STREQUAL "ON" AND EXISTS ${SLUICE_UCX_WHEEL}/lib/cmake/ucx/ucx-config.cmake)
  find_package(ucx REQUIRED CONFIG PATHS ${SLUICE_UCX_WHEEL} NO_DEFAULT_PATH)
  message(STATUS "UCX: ${ucx_VERSION} in ${SLUICE_UCX_WHEEL}, KV may go between GPUs directly")
else()
  find_package(ucx REQUIRED)
  message(STATUS "UCX: ${ucx_VERSION}, KV goes through host memory")
endif()
