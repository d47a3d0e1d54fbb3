#pragma once
#include <string>
#include <utility>
#include <vector>

using Kernel = std::pair<std::string, unsigned (*)(unsigned)>;
std::vector<Kernel> &registry();
