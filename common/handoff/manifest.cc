#include "common/handoff/manifest.h"

#include "common/handoff/crc32c.h"

namespace sluice {
namespace {

uint32_t AddNumber(uint32_t crc, int64_t number) { return Crc32c(&number, sizeof(number), crc); }

}  // namespace

void Manifest::Add(const SlabHeader& header, uint64_t checksum) {
  ++slabs_;
  rows_ += header.total_rows();
  crc_ = AddNumber(crc_, header.layer.value());
  crc_ = AddNumber(crc_, header.head_begin);
  crc_ = AddNumber(crc_, static_cast<int64_t>(header.rows.size()));
  for (size_t i = 0; i < header.rows.size(); ++i) {
    crc_ = AddNumber(crc_, header.row_begin[i]);
    crc_ = AddNumber(crc_, header.rows[i]);
  }
  crc_ = AddNumber(crc_, static_cast<int64_t>(checksum));
}

uint64_t Manifest::Digest(const Seal& seal) const {
  uint32_t crc = Crc32c(seal.ids.key.id.data(), seal.ids.key.id.size(), crc_);
  crc = AddNumber(crc, seal.ids.key.attempt);
  crc = AddNumber(crc, seal.slabs);
  crc = AddNumber(crc, seal.logical_len.value());
  crc = AddNumber(crc, seal.kept_total);
  crc = AddNumber(crc, seal.first_token);
  crc = AddNumber(crc, static_cast<int64_t>(seal.distinct_prompt_ids.size()));
  for (int id : seal.distinct_prompt_ids) crc = AddNumber(crc, id);
  return crc;
}

}  // namespace sluice
