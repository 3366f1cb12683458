# gradcheck in NVIDIA's PyTorch container, with the container's own torch and Transformer Engine.
#
#   docker build --tag gradcheck .
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" --volume "$PWD:/gradcheck" gradcheck run --provider te

# The wheel is built outside the container's constraint file, which would hold back the build tools as well.
FROM python:3.12-slim AS wheel
COPY pyproject.toml README.md LICENSE /source/
COPY gradcheck_cli /source/gradcheck_cli
COPY cases /source/cases
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM nvcr.io/nvidia/pytorch:26.06-py3
LABEL org.opencontainers.image.title="gradcheck" \
      org.opencontainers.image.description="Did every gradient of a grouped linear layer arrive, and is it right?" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="nvcr.io/nvidia/pytorch:26.06-py3"

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
COPY --from=wheel /wheels /opt/gradcheck
# The build fails where the installation would replace what is on trial.
RUN pip freeze | grep --ignore-case --extended-regexp '^(torch|transformer[-_]engine)\b' > /opt/gradcheck/before \
    && pip install --no-cache-dir --break-system-packages /opt/gradcheck/*.whl \
    && pip freeze | grep --ignore-case --extended-regexp '^(torch|transformer[-_]engine)\b' > /opt/gradcheck/after \
    && diff /opt/gradcheck/before /opt/gradcheck/after

# Any user may run it: the reports go to /gradcheck, the caches of torch and Triton to a home that anyone may write to.
ENV HOME=/home/gradcheck
RUN mkdir --mode=1777 /home/gradcheck /gradcheck
WORKDIR /gradcheck
USER 1000:1000

# NVIDIA's entrypoint chooses the CUDA compatibility libraries for the driver at hand, then runs what follows it.
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "gradcheck"]
CMD ["--help"]
