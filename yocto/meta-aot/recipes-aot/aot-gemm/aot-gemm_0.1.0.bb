SUMMARY = "Prebuilt GEMM kernels for a Jetson, picked by shape"
DESCRIPTION = "The C library of a wheel that `aot build` made, from the Debian packages that `aot deb` made of it."
SECTION = "libs"
# Apache-2.0 of the project and others, and NVIDIA's own of the CUDA runtime that is linked in: the file has all texts.
LICENSE = "Proprietary"
LIC_FILES_CHKSUM = "file://usr/share/doc/libaot-gemm1/copyright;md5=${AOT_COPYRIGHT_MD5}"

# Set both in local.conf: the version of the packages in files/, and the checksum of their copyright file.
AOT_VERSION ?= "${PV}"
AOT_COPYRIGHT_MD5 ?= ""

SRC_URI = " \
    file://libaot-gemm1_${AOT_VERSION}_arm64.deb;subdir=${BP} \
    file://libaot-gemm-dev_${AOT_VERSION}_arm64.deb;subdir=${BP} \
"

COMPATIBLE_MACHINE = "(tegra264)"
PACKAGE_ARCH = "${TEGRA_PKGARCH}"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

AOT_LIBDIR = "usr/lib/aarch64-linux-gnu"

do_install() {
    install -d ${D}${includedir} ${D}${libdir}/cmake/aot_gemm ${D}${libdir}/pkgconfig
    install -m 0755 ${S}/${AOT_LIBDIR}/libaot_gemm.so.1 ${D}${libdir}/
    ln -sf libaot_gemm.so.1 ${D}${libdir}/libaot_gemm.so
    install -m 0644 ${S}/usr/include/aot_gemm*.h* ${D}${includedir}/
    install -m 0644 ${S}/${AOT_LIBDIR}/cmake/aot_gemm/*.cmake ${D}${libdir}/cmake/aot_gemm/
    install -m 0644 ${S}/${AOT_LIBDIR}/pkgconfig/aot_gemm.pc ${D}${libdir}/pkgconfig/
    # Debian has a folder for the machine between the libraries and /usr/lib.
    sed -i -e 's|/\.\./\.\./\.\./\.\./include|/../../../include|' ${D}${libdir}/cmake/aot_gemm/aot_gemm-config.cmake
    sed -i -e 's|^libdir=.*|libdir=${libdir}|' ${D}${libdir}/pkgconfig/aot_gemm.pc
}

# The library is linked and stripped as it was measured.
INHIBIT_PACKAGE_STRIP = "1"
INHIBIT_PACKAGE_DEBUG_SPLIT = "1"
INHIBIT_SYSROOT_STRIP = "1"
INSANE_SKIP:${PN} = "already-stripped ldflags"

# It looks for libcuda.so.1 where it is called.
RDEPENDS:${PN} = "tegra-libraries-cuda"
