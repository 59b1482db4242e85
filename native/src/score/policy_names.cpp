#include "score/policy_names.h"

#include "hooks/given.h"
#include "hooks/status.h"
#include "score/traits.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <iterator>
#include <locale>
#include <sstream>
#include <vector>

namespace edgekv {

namespace {

constexpr uint32_t most_rows = 4096; // of queries that score; of the longest block

using Set = std::function<bool(edgekv_policy &, const std::string & value)>; // false = the value is not possible

struct Option {
    std::string name;
    std::string possible; // values, in words
    Set         set;      // none: it protects cells, and is no part of a policy
    std::string alias = {};
};

// A base or a wrapper.
struct Named {
    std::string                          name;
    std::function<void(edgekv_policy &)> begin; // its defaults
    std::vector<Option>                  options;
    std::vector<std::string>             after       = {};    // of a wrapper: others that it may be put around
    bool                                 reads_scores = false; // of a wrapper: as weights, which are no less than 0
};

template <typename T> bool parse(const std::string & text, T & number) {
    std::istringstream stream(text);
    stream.imbue(std::locale::classic());
    return text.rfind('-', 0) != 0 && stream >> std::noskipws >> number && stream.peek() == std::char_traits<char>::eof();
}

template <typename T, typename Limit> Option number(const char * name, T edgekv_policy::*member, Limit low, Limit high) {
    std::ostringstream range;
    range << "a number in [" << low << ", " << high << "]";
    return { name, range.str(), [member, low, high](edgekv_policy & policy, const std::string & value) {
                return parse(value, policy.*member) && policy.*member >= low && policy.*member <= high;
            } };
}

Option share(const char * name, double edgekv_policy::*member) { return number(name, member, 0.0, 1.0); }

Option word(const char * name, int32_t edgekv_policy::*member, const std::vector<std::string> & words) {
    std::string possible = words.front();
    for (size_t i = 1; i < words.size(); ++i) {
        possible += " or " + words[i];
    }
    return { name, possible, [member, words](edgekv_policy & policy, const std::string & value) {
                const auto found = std::find(words.begin(), words.end(), value);
                policy.*member   = static_cast<int32_t>(found - words.begin());
                return found != words.end();
            } };
}

// set(policy, whether it is on)
Option on_off(const char * name, const std::function<void(edgekv_policy &, bool)> & set) {
    return { name, "on or off", [set](edgekv_policy & policy, const std::string & text) {
                std::string value = text;
                std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
                const bool on = value == "on" || value == "true";
                set(policy, on);
                return on || value == "off" || value == "false";
            } };
}

// on: the value of the option at which the flag is there
Option flag(const char * name, uint32_t flag, bool on = true) {
    return on_off(name, [flag, on](edgekv_policy & policy, bool value) {
        policy.flags = value == on ? policy.flags | flag : policy.flags & ~flag;
    });
}

Option protects(const char * name) { return { name, "", {} }; }

Option kernel(const char * alias = "") {
    Option option   = number("kernel", &edgekv_policy::kernel, 1u, 1023u);
    option.possible = "an odd number in [1, 1023]";
    option.set      = [set = option.set](edgekv_policy & policy, const std::string & value) {
        return set(policy, value) && policy.kernel % 2 == 1;
    };
    option.alias = alias;
    return option;
}

Option pool() { return word("pool", &edgekv_policy::pool, { "avg", "max" }); }
Option aggregate() { return word("aggregate", &edgekv_policy::aggregate, { "mean", "max" }); }
Option rows(const char * name, const char * alias = "") {
    Option option = number(name, &edgekv_policy::rows, 1u, most_rows);
    option.alias  = alias;
    return option;
}

// What a policy begins as, beside the defaults of the struct.
std::function<void(edgekv_policy &)> base(int32_t of, uint32_t kernel = 1, uint32_t rows = 0, uint32_t flags = 0) {
    return [=](edgekv_policy & policy) {
        policy.base   = of;
        policy.kernel = kernel;
        policy.rows   = rows;
        policy.flags  = flags;
    };
}

constexpr uint32_t all_of_ahakv =
    EDGEKV_AHAKV_FLOOR | EDGEKV_AHAKV_RECENT_ACCUMULATION | EDGEKV_AHAKV_STEP_GAIN | EDGEKV_AHAKV_VALUE_PRIOR;

const std::vector<Named> & bases() {
    static const std::vector<Named> all = {
        { "keydiff",
          base(EDGEKV_BASE_KEYDIFF),
          { kernel(), pool(), word("anchor", &edgekv_policy::anchor, { "unit-mean", "mean", "median", "pairwise" }),
            word("metric", &edgekv_policy::metric, { "cosine", "dot", "euclidean" }), flag("rope", EDGEKV_KEYDIFF_BEFORE_ROPE, false),
            protects("window") } },
        { "snapkv",
          base(EDGEKV_BASE_SNAPKV, 7, 32),
          { rows("window", "W"), kernel(), pool(), aggregate(),
            on_off("pool_rows", [](edgekv_policy & policy, bool on) { policy.pool_rows = on; }) } },
        { "ahakv",
          base(EDGEKV_BASE_AHAKV, 7, 32, all_of_ahakv),
          { rows("r"), kernel("pool"), flag("floor", EDGEKV_AHAKV_FLOOR),
            flag("recent_accumulation", EDGEKV_AHAKV_RECENT_ACCUMULATION), flag("step_gain", EDGEKV_AHAKV_STEP_GAIN),
            flag("value_prior", EDGEKV_AHAKV_VALUE_PRIOR), protects("protect_recent") } },
        { "h2o", base(EDGEKV_BASE_H2O), {} },
        { "tova", base(EDGEKV_BASE_TOVA), {} },
        { "l2norm", base(EDGEKV_BASE_L2NORM), { kernel(), pool() } },
        { "sink", base(EDGEKV_BASE_SINK), { protects("n_sink") } },
        { "random", base(EDGEKV_BASE_RANDOM), { kernel(), pool(), number("seed", &edgekv_policy::seed, uint64_t(0), UINT64_MAX) } },
    };
    return all;
}

// What a wrapper over any base sets.
template <typename T> std::function<void(edgekv_policy &)> sets(T edgekv_policy::*member, T value) {
    return [=](edgekv_policy & policy) { policy.*member = value; };
}

const std::vector<Named> & wrappers() {
    static const std::vector<std::string> weighing = { "caote", "fastcaote" };
    static const std::vector<Named>       all      = {
        { "caote", sets<int32_t>(&edgekv_policy::weigh, EDGEKV_WEIGH_CAOTE), {}, {}, true },
        { "fastcaote", sets<int32_t>(&edgekv_policy::weigh, EDGEKV_WEIGH_FASTCAOTE), {}, {}, true },
        { "critical",
          [](edgekv_policy & policy) {
              policy.critical = 1;
              policy.alpha    = 0.5;
              policy.epsilon  = 1e-4;
          },
          { share("alpha", &edgekv_policy::alpha), share("epsilon", &edgekv_policy::epsilon) },
          weighing,
          true },
        { "ada",
          [](edgekv_policy & policy) {
              policy.spread    = EDGEKV_SPREAD_LAYER;
              policy.safeguard = 0.2;
          },
          { share("safeguard", &edgekv_policy::safeguard) },
          { "caote", "fastcaote", "critical", "pyramid" },
          true },
        { "pyramid",
          sets(&edgekv_policy::pyramid, 20.0),
          { number("beta", &edgekv_policy::pyramid, 1.0, 1e300) },
          { "caote", "fastcaote", "critical", "ada" } },
    };
    return all;
}

[[noreturn]] void refuse(const std::string & message) { throw Error(EDGEKV_STATUS_INVALID_ARGUMENT, message); }

template <typename T> std::string listed(const std::vector<T> & named) {
    std::string names;
    for (const T & each : named) {
        names += (names.empty() ? "" : ", ") + each.name;
    }
    return names.empty() ? "none" : names;
}

bool is_named(const Named & named, const std::string & name) { return named.name == name; }
bool is_named(const Option & option, const std::string & name) { return name == option.name || (!name.empty() && name == option.alias); }

template <typename T> const T & found(const std::vector<T> & named, const std::string & name, const std::string & what) {
    const auto at = std::find_if(named.begin(), named.end(), [&](const T & each) { return is_named(each, name); });
    if (at == named.end()) {
        refuse(what + " '" + name + "' is unknown; possible: " + listed(named));
    }
    return *at;
}

std::string stripped(const std::string & text) {
    const size_t first = text.find_first_not_of(" \t\n"), last = text.find_last_not_of(" \t\n");
    return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// The parts of a text between a separator that stands in no parentheses.
std::vector<std::string> split(const std::string & text, char separator) {
    std::vector<std::string> parts(1);
    int                      depth = 0;
    for (const char c : text) {
        depth += (c == '(') - (c == ')');
        if (c == separator && depth == 0) {
            parts.emplace_back();
        } else {
            parts.back() += c;
        }
    }
    std::transform(parts.begin(), parts.end(), parts.begin(), stripped);
    return parts;
}

bool contains(const std::vector<std::string> & names, const std::string & name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

struct Spelt {
    std::string name;
    std::string options; // as they stand between the parentheses
};

Spelt spelt(const std::string & part, const std::string & text) {
    const size_t open = part.find('('), close = part.find(')');
    if (open == std::string::npos && close == std::string::npos) {
        return { part, "" };
    }
    if (open == std::string::npos || close != part.size() - 1) {
        refuse("policy '" + text + "' is not spelt base(option=value, ...)+wrapper(...)");
    }
    return { stripped(part.substr(0, open)), stripped(part.substr(open + 1, close - open - 1)) };
}

void set_options(const Named & named, const std::string & options, edgekv_policy & policy) {
    std::vector<std::string> given;
    for (const std::string & item : options.empty() ? std::vector<std::string>() : split(options, ',')) {
        const size_t      equals = std::min(item.find('='), item.size());
        const std::string name   = stripped(item.substr(0, equals)), value = stripped(item.substr(std::min(equals + 1, item.size())));
        const Option &    option = found(named.options, name, "option of " + named.name);
        if (contains(given, option.name)) {
            refuse(named.name + " is given " + option.name + "= twice; give it once");
        }
        if (!option.set) {
            refuse(named.name + "(" + item + ") protects cells, which is no part of a policy; set struct edgekv_protection");
        }
        if (!option.set(policy, value)) {
            refuse(named.name + "(" + item + "): " + option.possible + " is possible");
        }
        given.push_back(option.name);
    }
}

} // namespace

edgekv_policy policy_named(const std::string & text) {
    const std::vector<std::string> parts = split(text, '+');
    const Spelt                    first = spelt(parts.front(), text);
    const Named &                  scored = found(bases(), first.name, "policy");

    edgekv_policy policy = default_of<edgekv_policy>();
    scored.begin(policy);
    set_options(scored, first.options, policy);
    const bool has_weights = policy.base != EDGEKV_BASE_KEYDIFF && policy.base != EDGEKV_BASE_L2NORM;

    std::vector<std::string> around;
    for (size_t i = 1; i < parts.size(); ++i) {
        const Spelt   next    = spelt(parts[i], text);
        const Named & wrapper = found(wrappers(), next.name, "wrapper");
        if (contains(around, wrapper.name) || (!around.empty() && !contains(wrapper.after, around.back()))) {
            refuse("policy '" + text + "': " + wrapper.name + " cannot follow " + around.back());
        }
        wrapper.begin(policy);
        set_options(wrapper, next.options, policy);
        policy.softmax |= wrapper.reads_scores && !has_weights;
        around.push_back(wrapper.name);
    }
    check(policy);
    return policy;
}

} // namespace edgekv
