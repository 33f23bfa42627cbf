// Role: sends an API key with every call of a channel. Why an interceptor: gRPC's own credentials for calls
// refuse a channel without TLS, such as one to this machine. Threads: any.
#pragma once

#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <string>
#include <vector>

namespace sluice {

// Empty for an empty key.
std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> SendsKey(
    const std::string& api_key);

}  // namespace sluice
