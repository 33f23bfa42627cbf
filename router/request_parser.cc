#include "router/request_parser.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/status_codec.h"
#include "common/text/unicode.h"

namespace sluice {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// Declared so that a client that sets them hears of it (api.md §1).
constexpr absl::string_view kNotServed[] = {
    "sluice.v1.Output.prompt_logprobs",   "sluice.v1.Output.echo",
    "sluice.v1.Output.response_format",   "sluice.v1.ChatRequest.priority",
    "sluice.v1.CompleteRequest.priority",
};

std::string Join(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

// The path of the first string that is not UTF-8, in a message read without a check.
std::optional<std::string> FindInvalidText(const std::string& bytes, const Descriptor* type,
                                           const std::string& path) {
  UnknownFieldSet fields;
  if (!fields.ParseFromString(bytes)) return std::nullopt;
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* declared = type->FindFieldByNumber(field.number());
    if (declared == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    std::string here = Join(path, declared->name());
    if (declared->type() == FieldDescriptor::TYPE_STRING && FirstInvalidUtf8(field.length_delimited()))
      return here;
    if (declared->type() == FieldDescriptor::TYPE_MESSAGE) {
      if (auto inner = FindInvalidText(field.length_delimited(), declared->message_type(), here))
        return inner;
    }
  }
  return std::nullopt;
}

absl::Status CheckServed(const Message& message, const std::string& path) {
  const Reflection* reflection = message.GetReflection();
  const UnknownFieldSet& unknown = reflection->GetUnknownFields(message);
  if (!unknown.empty()) return FieldNotServed(Join(path, absl::StrCat("field ", unknown.field(0).number())));
  std::vector<const FieldDescriptor*> set;
  reflection->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    std::string here = Join(path, field->name());
    for (absl::string_view name : kNotServed) {
      if (name == field->full_name()) return FieldNotServed(here);
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const Message& inner = field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                                  : reflection->GetMessage(message, field);
      if (absl::Status status = CheckServed(inner, here); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseRequest(const std::string& bytes, Message* request) {
  if (!request->ParseFromString(bytes)) {
    if (auto path = FindInvalidText(bytes, request->GetDescriptor(), "")) {
      return BadField(*path, "not valid UTF-8; send text as UTF-8");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the request is not a well-formed ", request->GetDescriptor()->full_name()));
  }
  return CheckServed(*request, "");
}

}  // namespace sluice
