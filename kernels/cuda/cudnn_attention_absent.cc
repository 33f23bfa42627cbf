#include "kernels/cuda/cudnn_attention.h"

namespace sluice {

CudnnAttention* CudnnAttention::OfDevice(int) { return nullptr; }
std::string CudnnAttention::Name() { return "no cuDNN"; }

}  // namespace sluice
