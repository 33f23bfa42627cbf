# Every library the build links, from Debian 12 unless said otherwise.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(Boost REQUIRED)
include(GoogleTest)

find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

# Optional, as its server is: sessions of many routers (--sessions-db postgresql://...).
pkg_check_modules(LIBPQ IMPORTED_TARGET libpq)
if(NOT LIBPQ_FOUND)
  message(STATUS "PostgreSQL: skipped, no libpq; sessions are kept in a file")
endif()
