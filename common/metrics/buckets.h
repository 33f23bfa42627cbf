// Role: histogram bounds. Every bound is the double nearest to its decimal, so that it is rendered as
// written. Threads: pure functions.
#pragma once

#include <vector>

namespace sluice::buckets {

std::vector<double> FirstToken();      // seconds, .001 to 160
std::vector<double> InterToken();      // seconds, .0005 to 2.5
std::vector<double> Request();         // seconds, .005 to 960
std::vector<double> Queue();           // seconds, .0005 to 60 in 1-2.5-5
std::vector<double> KvTransfer();      // seconds, .00005 to 10 in 1-2.5-5
std::vector<double> Step();            // seconds, .0005 to 10 in 1-2.5-5
std::vector<double> Compression();     // seconds, .00005 to 10 in 1-2.5-5
std::vector<double> Tokens();          // 1, 4, 16 to 262144
std::vector<double> KvTransferSize();  // bytes, 4 KiB to 64 GiB, times 4
std::vector<double> BatchSize();       // 1, 2, 4 to 1024
std::vector<double> Ratio();           // .05 to 1 in steps of .05

}  // namespace sluice::buckets
