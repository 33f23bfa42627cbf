// Role: what is served over HTTP: which path and method goes where. Everything here ends in the core that
// gRPC uses. Threads: Serve on the server's; what takes a while goes to the work pool.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "router/http/http_exchange.h"
#include "router/http/openai_fields.h"
#include "router/run_services.h"

namespace sluice {

class HttpApi final : public HttpHandler {
 public:
  // services outlives the server. ready: the router may be sent requests.
  HttpApi(const RunServices* services, std::function<bool()> ready)
      : services_(services), ready_(std::move(ready)) {}

  void Serve(std::shared_ptr<HttpExchange> exchange, HttpRequest request) override;
  HttpResponse Refusal(int code, const std::string& reason, const std::string& message) const override;

  // The endpoints that make requests, as metrics label them.
  static std::vector<std::string> Methods();

 private:
  using Exchange = std::shared_ptr<HttpExchange>;
  struct Route {
    const char* method;
    const char* path;  // one that ends in '/' has more behind it
    void (HttpApi::*serve)(const Exchange& exchange, HttpRequest request) const;
  };
  static const std::vector<Route>& Routes();

  void Health(const Exchange& exchange, HttpRequest request) const;
  void ListModels(const Exchange& exchange, HttpRequest request) const;
  void GetModel(const Exchange& exchange, HttpRequest request) const;
  void Chat(const Exchange& exchange, HttpRequest request) const;
  void Complete(const Exchange& exchange, HttpRequest request) const;
  void Tokenize(const Exchange& exchange, HttpRequest request) const;
  void Detokenize(const Exchange& exchange, HttpRequest request) const;

  // On the work pool; what `work` returns is the answer's body.
  void AnswerText(const Exchange& exchange, OpenAiEndpoint endpoint, const std::string& authorization,
                  std::function<absl::StatusOr<std::string>()> work) const;

  const RunServices* const services_;
  const std::function<bool()> ready_;
};

}  // namespace sluice
