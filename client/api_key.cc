#include "client/api_key.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

class KeySender final : public Interceptor {
 public:
  explicit KeySender(const std::string* header) : header_(header) {}
  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA))
      methods->GetSendInitialMetadata()->emplace("authorization", *header_);
    methods->Proceed();
  }

 private:
  const std::string* const header_;
};

class KeySenders final : public ClientInterceptorFactoryInterface {
 public:
  explicit KeySenders(const std::string& api_key) : header_(absl::StrCat("Bearer ", api_key)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo*) override { return new KeySender(&header_); }

 private:
  const std::string header_;
};

}  // namespace

std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> SendsKey(const std::string& api_key) {
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> interceptors;
  if (!api_key.empty()) interceptors.push_back(std::make_unique<KeySenders>(api_key));
  return interceptors;
}

}  // namespace sluice
