// Role: the public Sessions service over the session store. Threads: gRPC's callback pool; the store is asked
// on the work pool.
#pragma once

#include <grpcpp/grpcpp.h>

#include "router/run_services.h"
#include "sluice/v1/sessions.grpc.pb.h"

namespace sluice {

class SessionsService final : public v1::Sessions::CallbackService {
 public:
  explicit SessionsService(const RunServices* services) : services_(services) {}

  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context,
                                          const v1::CreateSessionRequest* request,
                                          v1::Session* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const v1::GetSessionRequest* request,
                                       v1::GetSessionResponse* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context,
                                          const v1::DeleteSessionRequest* request,
                                          v1::DeleteSessionResponse* response) override;
  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* context,
                                        const v1::ForkSessionRequest* request,
                                        v1::Session* response) override;
  grpc::ServerUnaryReactor* TruncateSession(grpc::CallbackServerContext* context,
                                            const v1::TruncateSessionRequest* request,
                                            v1::Session* response) override;

 private:
  // Runs `work` on the pool, with the owner whose call it is, and finishes with its status.
  template <class Work>
  grpc::ServerUnaryReactor* OnPool(grpc::CallbackServerContext* context, Work work);
  v1::Session ToProto(const Session& session) const;

  const RunServices* const services_;
};

}  // namespace sluice
