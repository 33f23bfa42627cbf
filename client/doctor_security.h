// Role: what `sluice doctor` says of a router that others can reach: who may ask, what is encrypted, what
// must stay private. Threads: one.
#pragma once

#include <string>

#include "client/connection.h"
#include "client/doctor_report.h"

namespace sluice {

void CheckSecurity(const std::string& router, const Credentials& credentials, Report* report);

}  // namespace sluice
