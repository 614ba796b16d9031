package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/gomlx/go-huggingface/hub"
	hfsafetensors "github.com/gomlx/go-huggingface/models/safetensors"
)

// A hubModel is go-huggingface's reader over one local file. It reads models of
// a hub only, so a server on the loopback interface says that the hub has the
// file, and a link in its cache that it is already downloaded.
type hubModel struct {
	model  *hfsafetensors.Model
	server *httptest.Server
	cache  string
}

const hubFile = "model.safetensors"

func newHubModel(scratch, file string) (*hubModel, error) {
	cache, err := os.MkdirTemp(scratch, "hub-")
	if err != nil {
		return nil, err
	}
	snapshot := filepath.Join(cache, "models--bench--model", "snapshots", "0")
	if err := os.MkdirAll(snapshot, 0o755); err != nil {
		return nil, err
	}
	if file, err = filepath.Abs(file); err != nil {
		return nil, err
	}
	if err := os.Symlink(file, filepath.Join(snapshot, hubFile)); err != nil {
		return nil, err
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"id":"bench/model","sha":"0","siblings":[{"rfilename":%q}]}`, hubFile)
	}))
	repo := hub.New("bench/model").WithEndpoint(server.URL).WithCacheDir(cache)
	repo.Verbosity = 0
	return &hubModel{hfsafetensors.NewEmpty(repo), server, cache}, nil
}

// header reads and parses the header.
func (h *hubModel) header() error {
	info, err := h.model.GetSafetensor(hubFile)
	if err == nil && len(info.Header.Tensors) == 0 {
		err = fmt.Errorf("no tensors")
	}
	return err
}

// load reads all tensors into memory.
func (h *hubModel) load() (bytes int64, err error) {
	if err := h.model.Load(); err != nil {
		return 0, err
	}
	var kept []any
	for t, err := range h.model.IterTensors() {
		if err != nil {
			return 0, err
		}
		kept = append(kept, t.Tensor)
		bytes += int64(t.Tensor.Memory())
	}
	if len(kept) == 0 {
		return 0, fmt.Errorf("no tensors")
	}
	return bytes, nil
}

func (h *hubModel) close() {
	h.server.Close()
	os.RemoveAll(h.cache)
}
