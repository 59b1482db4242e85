# What scripts share that build the library in a folder of its own. They source it at the root of the checkout.

missing=()
needs() { [ -x "$(command -v "$1")" ] || missing+=("$2"); } # a tool, its package of Debian's

# End here if anything is missing. The source of llama.cpp is there already, fetched and patched by an install.
needs_are_met() {
    [ ${#missing[@]} -eq 0 ] || { echo "what it needs is not installed: apt-get install ${missing[*]}" >&2; exit 1; }
    sources=(build/py3-none-*/llama.cpp-src)
    [ -d "${sources[0]}" ] || { echo "edgekv is not installed in editable mode; run uv sync first" >&2; exit 1; }
    python=$(uv run --no-sync python -c 'import sys; print(sys.executable)')
}

tools=() # the command that runs CMake, where it is not in PATH

configure() { # BUILD ARGUMENT_OF_CMAKE...
    mkdir -p "$1"
    if ! cmp -s "${sources[0]}/.edgekv-source" "$1/llama.cpp-src/.edgekv-source"; then
        rm -rf "$1/llama.cpp-src"
        cp -a "${sources[0]}" "$1/"
    fi
    "${tools[@]}" cmake -G Ninja -S native -B "$1" -DPython_EXECUTABLE="$python" "${@:2}" >"$1/configure.log" ||
        { cat "$1/configure.log"; exit 1; }
}

build_library() { # BUILD
    "${tools[@]}" cmake --build "$1" --target edgekv >"$1/build.log" || { cat "$1/build.log"; exit 1; }
}

lay_out_checkout() { # FOLDER: edgekv's sources as an install lays them out
    rm -rf "$1"
    mkdir -p "$1/edgekv"
    ln -s "$PWD"/edgekv/* "$PWD"/models "$PWD"/cli "$1/edgekv/"
}

native_tests() { # BUILD PYTEST_ARGUMENT...
    EDGEKV_NATIVE_BUILD=$1 uv run --no-sync pytest -q tests/native/test_native.py "${@:2}"
}
