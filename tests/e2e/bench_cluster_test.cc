// sluice bench against router, prefill and decode as real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/client/client_run.h"
#include "tests/support/process_cluster.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class BenchCluster : public testing::Test {
 protected:
  // `run` comes first: it blocks the signals before gRPC starts threads.
  ClientRun run;
  TempDir dir;
  std::unique_ptr<ProcessCluster> cluster;

  void SetUp() override {
    cluster = std::make_unique<ProcessCluster>(ProcessCluster::Options{});
    ASSERT_TRUE(cluster->WaitReady()) << cluster->Logs();
  }
  void TearDown() override {
    if (HasFailure()) std::fprintf(stderr, "%s%s\n", cluster->Logs().c_str(), run.err().c_str());
  }

  int Bench(std::vector<std::string> words) {
    words.insert(words.begin(), {"bench", "--router", cluster->router_address(), "--json", json_path()});
    return run.Run(words);
  }
  std::string json_path() const { return dir.path() + "/out.json"; }
  nlohmann::json Json() const {
    std::ifstream file(json_path());
    return nlohmann::json::parse(file);
  }
  bool NothingInFlight() {
    for (int i = 0; i < 100 * kPatience; ++i) {
      double sum = 0;
      for (const char* stage : {"queued", "prefill", "transfer", "decode"}) {
        const double value =
            cluster->Metric("router", "sluice_requests_in_flight", {std::string("stage=\"") + stage + "\""});
        sum += value < 0 ? 1 : value;  // a series that is not there is no proof
      }
      if (sum == 0) return cluster->WaitPagesFree("decode0");
      absl::SleepFor(absl::Milliseconds(50));
    }
    return false;
  }
  int Sessions() {
    grpc::ClientContext context;
    v1::ListSessionsResponse sessions;
    EXPECT_TRUE(cluster->sessions().ListSessions(&context, {}, &sessions).ok());
    return sessions.sessions_size();
  }
};

TEST_F(BenchCluster, AClosedLoopComparesPresets) {
  ASSERT_EQ(
      Bench({"--requests",      "5",    "--warmup",        "1",  "--concurrency", "2",
             "--prompt-tokens", "600",  "--output-tokens", "12", "--preset",      "full,rocketkv,sluice",
             "--budget",        "128",  "--seed",          "1",  "--slo-e2e",     "600000",
             "--slo-ttft",      "0.001"}),
      0);
  const nlohmann::json json = Json();
  EXPECT_EQ(json["model"], "needle-14m");
  ASSERT_EQ(json["runs"].size(), 3u);
  for (const nlohmann::json& one : json["runs"]) {
    EXPECT_EQ(one["completed"], 5);
    EXPECT_EQ(one["failed"], 0);
    EXPECT_EQ(one["total_output_tokens"], 60);
    EXPECT_NEAR(one["total_input_tokens"].get<double>() / 5, 600, 6);
    EXPECT_EQ(one["good"], 0);  // no first token comes in a microsecond
    EXPECT_EQ(one["max_concurrent_requests"], 2);
    EXPECT_NEAR(one["request_throughput"].get<double>(), 5 / one["duration"].get<double>(), 1e-9);
    ASSERT_EQ(one["requests"].size(), 5u);
    double last_end = 0;
    for (const nlohmann::json& request : one["requests"]) {
      EXPECT_EQ(request["method"], one["preset"]);
      EXPECT_EQ(request["output_tokens"], 12);
      EXPECT_LT(request["cached_tokens"], 64) << "prompts share nothing";
      // What the client sees contains what the router sees.
      EXPECT_GE(request["ttft_ms"].get<double>(), request["server_ttft_s"].get<double>() * 1e3 - 1);
      EXPECT_NEAR(request["e2el_ms"].get<double>() / 1e3,
                  request["end_s"].get<double>() - request["arrival_s"].get<double>(), 1e-6);
      double gaps = 0;
      for (double gap : request["itls_ms"]) gaps += gap;
      EXPECT_NEAR(request["tpot_ms"].get<double>(), gaps / 11, 1e-6);
      last_end = std::max(last_end, request["end_s"].get<double>());
    }
    EXPECT_NEAR(one["duration"].get<double>(), last_end, 1e-9);
  }
  EXPECT_LT(json["runs"][1]["mean_wire_bytes"], json["runs"][0]["mean_wire_bytes"]);
  EXPECT_GT(json["runs"][1]["mean_wire_bytes"], 0);
  EXPECT_THAT(run.out(), ContainsRegex("full  rocketkv +sluice\nSuccessful requests +5 +5 +5\n"));
  EXPECT_TRUE(NothingInFlight());
}

TEST_F(BenchCluster, AnOpenLoopMeasuresFromTheArrival) {
  // Arrivals are quicker than the servers, and one request is let through at a time: those behind it wait.
  ASSERT_EQ(Bench({"--rate", "2000", "--concurrency", "1", "--requests", "6", "--prompt-tokens", "300",
                   "--output-tokens", "4", "--preset", "full"}),
            0);
  const nlohmann::json json = Json();
  const nlohmann::json& requests = json["runs"][0]["requests"];
  ASSERT_EQ(requests.size(), 6u);
  for (size_t i = 1; i < requests.size(); ++i) {
    const double arrival = requests[i]["arrival_s"], sent = requests[i]["sent_s"];
    EXPECT_GT(arrival, requests[i - 1]["arrival_s"]);
    EXPECT_GE(sent, requests[i - 1]["end_s"]);
    EXPECT_GT(requests[i]["ttft_ms"].get<double>() / 1e3, sent - arrival) << "the wait is part of it";
  }
  EXPECT_GT(requests[5]["ttft_ms"], requests[0]["e2el_ms"]);
  EXPECT_THAT(run.out(), HasSubstr("P99 send delay (ms)"));
  EXPECT_TRUE(NothingInFlight());
}

TEST_F(BenchCluster, SessionsAreContinuedAndDeleted) {
  ASSERT_EQ(Bench({"--turns", "3", "--prompt-tokens", "500", "--turn-tokens", "40", "--concurrency", "2",
                   "--shared-prefix-tokens", "300", "--requests", "9", "--output-tokens", "6", "--preset",
                   "sluice-mt", "--budget", "128"}),
            0);
  const nlohmann::json json = Json();
  for (const nlohmann::json& request : json["runs"][0]["requests"]) {
    EXPECT_EQ(request["code"], "OK") << request["error"];
    if (request["turn"] > 0) {
      EXPECT_GT(request["cached_tokens"], 400);
    }
    if (request["turn"] == 0 && request["dialogue"] > 1) {
      EXPECT_GE(request["cached_tokens"], 192) << "the shared prefix";
      EXPECT_LT(request["cached_tokens"], 384) << "and no more";
    }
  }
  EXPECT_EQ(Sessions(), 0);
  EXPECT_TRUE(NothingInFlight());
}

TEST_F(BenchCluster, CtrlCLeavesNothingBehind) {
  std::thread stopper([&] {
    for (int i = 0; i < 3000; ++i) {
      if (cluster->Metric("router", "sluice_requests_in_flight", {"stage=\"decode\""}) > 0) break;
      absl::SleepFor(absl::Milliseconds(10));
    }
    kill(getpid(), SIGINT);
  });
  EXPECT_EQ(Bench({"--turns", "2", "--concurrency", "3", "--requests", "100", "--prompt-tokens", "600",
                   "--output-tokens", "4000"}),
            130);
  stopper.join();
  EXPECT_THAT(run.out(), ContainsRegex("Interrupted requests +[123]\n"));
  EXPECT_EQ(Json()["runs"][0]["interrupted"], true);
  EXPECT_TRUE(NothingInFlight());
  EXPECT_EQ(Sessions(), 0);
  EXPECT_EQ(Bench({"--requests", "1", "--prompt-tokens", "100", "--output-tokens", "2"}), 0);
}

TEST_F(BenchCluster, WhatTheModelCannotReadIsRefusedBeforeTheLoad) {
  EXPECT_EQ(Bench({"--prompt-tokens", "40000"}), 1);
  EXPECT_THAT(run.err(), HasSubstr("--prompt-tokens 40000"));
  EXPECT_THAT(run.err(), HasSubstr("the model reads 32768"));
}

}  // namespace
}  // namespace sluice
