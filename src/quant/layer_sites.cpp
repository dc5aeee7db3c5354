#include "quant/layer_sites.h"

namespace quatrain {

std::vector<SiteLinears> sites_of(DecoderLayer& layer) {
  std::vector<SiteLinears> sites = {{Site::Qkv, 0, {&layer.q, &layer.k, &layer.v}},
                                    {Site::Output, 0, {&layer.o}}};
  for (size_t expert = 0; expert < layer.mlps.size(); ++expert) {
    DecoderLayer::Mlp& mlp = layer.mlps[expert];
    const auto number = static_cast<int64_t>(expert);
    sites.push_back({Site::GateUp, number, {&mlp.gate, &mlp.up}});
    sites.push_back({Site::Down, number, {&mlp.down}});
  }
  return sites;
}

std::vector<ReferenceLinear*> linears_at(DecoderLayer& layer, Site site) {
  std::vector<ReferenceLinear*> all;
  for (const SiteLinears& one : sites_of(layer))
    if (one.site == site) all.insert(all.end(), one.linears.begin(), one.linears.end());
  return all;
}

torch::Tensor weights_of(const std::vector<ReferenceLinear*>& linears) {
  std::vector<torch::Tensor> weights;
  for (const ReferenceLinear* linear : linears) weights.push_back(linear->weight);
  return torch::cat(weights);
}

}  // namespace quatrain
