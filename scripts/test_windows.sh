#!/usr/bin/env bash
# Build the library for 64-bit Windows on Linux by mingw-w64, and run its tests under wine: the native ones, then some of Python's.
#   scripts/test_windows.sh [native|python] [PYTEST_ARGUMENT...]
# Without the name of a part both run. The part `python` needs a package index, and Python 3.11 in the checkout's environment.
# Wine is not Windows: it says nothing of speed or memory, and GCC is not the compiler of the wheels.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=(native python)
case "${1:-}" in native | python) parts=("$1") && shift ;; esac

. scripts/separate_build.sh
wine=/usr/lib/wine/wine64 # the program `wine` asks for 32-bit libraries, too
needs x86_64-w64-mingw32-g++-posix g++-mingw-w64-x86-64-posix
needs "$wine" wine64
needs cmake cmake
needs ninja ninja-build
needs_are_met

build=$PWD/build/windows
# The C sources are compiled for Windows 7: headers of mingw-w64 before its release 11 lack what ggml asks of newer ones.
configure "$build" -DEDGEKV_NATIVE_ARCH=OFF \
    -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_SYSTEM_PROCESSOR=AMD64 -DCMAKE_C_FLAGS=-D_WIN32_WINNT=0x0601 \
    -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc-posix -DCMAKE_CXX_COMPILER=x86_64-w64-mingw32-g++-posix \
    "-DCMAKE_CROSSCOMPILING_EMULATOR=$wine"
build_library "$build"

exported() { # DLL
    x86_64-w64-mingw32-objdump -p "$1" | sed -n '/Ordinal\/Name Pointer/,$ s/.*\s\([A-Za-z0-9_]*\)$/\1/p'
}

# The bindings and C programs find every function in the library, which needs nothing that Windows does not have.
exports=$(exported "$build/llama.dll")
for name in edgekv_cache_open edgekv_plan_make llama_model_load_from_file llama_decode ggml_init gguf_init_from_file; do
    grep -qx "$name" <<<"$exports" || { echo "llama.dll does not export $name" >&2; exit 1; }
done
needed=$(x86_64-w64-mingw32-objdump -p "$build/llama.dll" | sed -n 's/.*DLL Name: //p')
if grep -iE 'libstdc|libgcc|winpthread' <<<"$needed"; then echo "llama.dll needs a library of the compiler" >&2; exit 1; fi

export WINEPREFIX=$build/wine WINEDEBUG=-all

if [[ " ${parts[*]} " = *" native "* ]]; then
    native_tests "$build" -k plain "$@"
fi

# ---- Python's: the interpreter lies in Panda3D's wheel, for the programs that Panda3D packages; the standard library is this environment's,
# and so are other packages, as far as they are Python ----

# The last numpy whose complex numbers need no function of the C library that wine 8 lacks.
packages=(numpy==1.26.4 psutil pyyaml colorama pypdfium2)
panda3d=1.10.14 # with Python 3.11.7

unpack_python() { # FOLDER
    [ "$("$python" -c 'import sys; print(*sys.version_info[:2])')" = "3 11" ] ||
        { echo "Python for Windows is one of 3.11, and its standard library is the environment's; run uv sync --python 3.11" >&2; exit 1; }
    rm -rf "$1.new" "$1.panda3d"
    mkdir "$1.new"
    for_windows --target "$1.panda3d" --no-deps "panda3d==$panda3d"
    cp "$1.panda3d"/deploy_libs/{*.pyd,libcrypto*,libffi*,libssl*,python311.dll,sqlite3.dll,VCRUNTIME140.dll} "$1.new"
    rm -rf "$1.panda3d"
    cp -r "$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" "$1.new/Lib"
    rm -rf "$1.new"/Lib/{site-packages,test,lib-dynload,config-*}
    cat >"$1.new/main.c" <<'END'
#include <windows.h>
int wmain(int n, wchar_t **arguments)
{
    HMODULE python = LoadLibraryW(L"python311.dll");
    int (*run)(int, wchar_t **) = python ? (int (*)(int, wchar_t **))GetProcAddress(python, "Py_Main") : NULL;
    return run ? run(n, arguments) : 126;
}
END
    x86_64-w64-mingw32-gcc-posix -O1 -municode "$1.new/main.c" -o "$1.new/python.exe"
    # The stable interface of Python's is a library without code: its names are those of another one.
    { echo LIBRARY python3 && echo EXPORTS && exported "$1.new/python311.dll" | grep -E '^_?Py' | sed 's/.*/& = python311.&/'; } \
        >"$1.new/python3.def"
    x86_64-w64-mingw32-gcc-posix -shared -nostdlib -Wl,--entry=0 -o "$1.new/python3.dll" "$1.new/python3.def"
    mv "$1.new" "$1"
}

for_windows() { # ARGUMENT_OF_UV_PIP_INSTALL...
    uv pip install -q --python-platform x86_64-pc-windows-msvc --python-version 3.11 --only-binary :all: "$@"
}

if [[ " ${parts[*]} " = *" python "* ]]; then
    root=$build/python
    [ -d "$root" ] || unpack_python "$root"
    rm -rf "$root.packages"
    for_windows --target "$root.packages" "${packages[@]}"
    lay_out_checkout "$build/checkout"
    installed=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cat >"$build/python3" <<END
#!/bin/sh
export WINEPREFIX="$WINEPREFIX" WINEDEBUG=-all EDGEKV_LIB_PATH="Z:$build" PYTHONSAFEPATH=1
export PYTHONPATH="Z:$build/checkout;Z:$root.packages;Z:$installed"
exec "$wine" "$root/python.exe" "\$@"
END
    chmod +x "$build/python3"
    # A program in a folder of tests cannot import its neighbours, because PYTHONSAFEPATH keeps the checkout's edgekv out.
    [ $# -gt 0 ] || set -- --deselect tests/runtime/test_session_files.py::test_damaged_files_are_refused_or_sound tests/runtime/test_{exactness,worker,session,session_files}.py \
        tests/unit/test_{store,spool,channel,jsonl,documents}.py
    echo "pytest $* on Windows:" # its streams are pipes, because under wine this Python takes no files for them
    "$build/python3" -m pytest -q -p no:cacheprovider "$@" </dev/null 2>&1 | cat
    echo "README's question about one line:"
    echo "The road to the City of Emeralds is paved with yellow brick." |
        "$build/python3" -m edgekv ask --memory 1GiB "What is the road to the City of Emeralds paved with?" 2>&1 | grep "yellow brick"
fi
